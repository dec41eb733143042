"""An MCP server over stdio with one tool, as a process of its own."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("numbers")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


if __name__ == "__main__":
    server.run()
