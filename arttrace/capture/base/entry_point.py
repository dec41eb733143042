"""The entry point of a run under two names: one that loads it again, and one that is the same however it was started.

`/home/me/app/agent.py:answer` run as a script, `agent:answer` imported by a server, `python -m app.agent` and a copy of
the same code in another container are one function. Its name comes from the file that defines it, seen from the
outermost package, else from the project's root (the folder with `pyproject.toml` or `setup.py`), and never holds a path
of the machine. Runs with one name and equal arguments are compared with each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from arttrace.capture.base.annotations import function_of

_PROJECT_FILES = ("pyproject.toml", "setup.py")
_MODULES = (".py", ".pyc")
_PROGRAM = ("__main__", "__mp_main__")
"""The module of the program; the second in a process of `multiprocessing` that was not forked."""
_NOTEBOOK = ("__vsc_ipynb_file__", "__session__")
"""The variables by which VS Code and ipykernel name its notebook to a cell."""


class EntryPoint(NamedTuple):
    """`source` is what loads it again: `module:qualname`, `path/to/file.py:qualname`, or a program's path or module;
    `name` is `package.module:qualname`, or a program's module alone."""

    source: str
    name: str


def of_callable(fn: Callable[..., Any]) -> tuple[str, EntryPoint]:
    """The name of a function, of a partial object or of an object that is called, and the entry point that it is."""
    function = function_of(fn)
    named = fn if hasattr(fn, "__name__") else function
    name = getattr(named, "__name__", type(named).__name__)
    return name, of_function(function, getattr(named, "__qualname__", name))


def of_function(fn: Callable[..., Any], qualname: str) -> EntryPoint:
    """The entry point that a function is. For a script the source is its path, as `__main__` names nothing later."""
    module = str(getattr(fn, "__module__", ""))
    file = _file_of(module)
    source = module
    if module in _PROGRAM:
        spec = getattr(sys.modules.get(module), "__spec__", None)
        source = str(spec.name) if spec is not None else file or module
    is_in_archive = file is not None and module not in _PROGRAM and not _is_file(Path(file))
    name = source if file is None or is_in_archive else module_name(file)
    if file is None and module in _PROGRAM:
        name = _notebook(getattr(fn, "__globals__", {})) or name
    return EntryPoint(f"{source}:{qualname}", f"{name}:{qualname}")


def _notebook(variables: Mapping[str, Any]) -> str | None:
    """The name of the notebook whose cells have these variables, as that of a script."""
    named = (Path(value) for name in _NOTEBOOK if isinstance(value := variables.get(name), str))
    return next((file.stem for file in named if file.suffix == ".ipynb"), None)


def of_program() -> EntryPoint:
    """The entry point that this whole program is: the module given with -m, else the script."""
    spec, file = getattr(sys.modules.get("__main__"), "__spec__", None), _file_of("__main__")
    source = str(spec.name).removesuffix(".__main__") if spec is not None else file or sys.argv[0] or "python"
    return EntryPoint(source, source if file is None else module_name(file).removesuffix(".__main__"))


def is_of_a_library(fn: Callable[..., Any]) -> bool:
    """Whether a function is Python's own or of an installed package."""
    module = str(getattr(function_of(fn), "__module__", ""))
    file = _file_of(module)
    return module.partition(".")[0] in sys.stdlib_module_names or (file is not None and _is_installed(Path(file)))


def _file_of(module: str) -> str | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return file if isinstance(file, str) else None


def module_name(file: str) -> str:
    """The dotted name of a Python file within its project.

    `app.agent` for `app/agent.py` in a package `app`, wherever that is; `examples.agent` for `examples/agent.py` below
    a project's root (a `src` folder there is left out); `agent` for a file that belongs to neither.
    """
    path = Path(file).absolute()
    package = path.parent
    while any(_is_file(package / f"__init__{suffix}") for suffix in _MODULES) and package != package.parent:
        package = package.parent
    root = package
    if package == path.parent and not _is_installed(package):
        root = next((above for above in (package, *package.parents) if _is_root(above)), package)
    parts = path.relative_to(root).with_suffix("").parts if path.suffix in _MODULES else (path.name,)
    if len(parts) > 1 and parts[0] == "src" and root != package:
        parts = parts[1:]
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def _is_root(folder: Path) -> bool:
    return any(_is_file(folder / name) for name in _PROJECT_FILES)


def _is_installed(folder: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(folder.parts) or folder == Path(sys.executable).parent


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # not for us to read
        return False
