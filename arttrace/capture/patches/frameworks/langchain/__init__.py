"""Hooks LangChain and LangGraph, which run each other: tools, graphs that are agents, and the steps between them."""
