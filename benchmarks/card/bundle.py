"""Bundles of Python packages for a machine with a GPU and no network: made elsewhere, carried, unpacked there.

    python benchmarks/card/bundle.py client vllm            # writes card-bundles/client.tar.xz, ...
    python benchmarks/card/bundle.py --try PYTHON vllm      # and imports it with a Python like that machine's
    python benchmarks/gpu.py                                # there: unpacks what lies in card-bundles

The machine is taken to have Python 3.12 on Linux x86-64 with torch 2.11 (CUDA 13), transformers, peft, accelerate and
what they need, and for TRL, Unsloth and vLLM the usual packages of data and web: pandas, pyarrow, requests, xxhash,
uvloop, prometheus-client, torchvision, scipy; `--try` says what lacks. A bundle holds the packages that it lacks,
without what is not run there: tests, headers, front ends, and of compiled kernels those for other architectures. Each
has at most 60 MiB. They can be carried one after the other: an unpacked one stays until the machine is given back.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from benchmarks.card.fatbin import keep_architecture  # noqa: E402

LIMIT = 60 << 20
PYTHON = "3.12"
GLIBC = (5, 12, 17, 24, 26, 27, 28, 31, 34, 35)
"""Minor versions of glibc 2 whose wheels run there; pip compares them for equality."""
FOLDER = "card-bundles"


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is in one: pinned packages, patterns of files that are left out, patterns of the only ones that are kept,
    and modules that it has to make importable. `needs` are other bundles."""

    packages: tuple[str, ...]
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ("*",)
    imports: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


_TELEMETRY = ("opentelemetry-api==1.45.2", "opentelemetry-sdk==1.45.2", "opentelemetry-proto==1.45.1")
_PYDANTIC = ("pydantic==2.14.3", "pydantic-core==2.50.4", "annotated-types==0.8.0", "typing-inspection==0.4.5")
_DATASETS = ("datasets==4.8.5", "dill==0.4.1", "multiprocess==0.70.19")
_AIOHTTP = (
    "aiohttp==3.14.5",
    "aiohappyeyeballs==2.7.1",
    "aiosignal==1.4.0",
    "attrs==26.1.0",
    "frozenlist==1.8.0",
    "multidict==7.2.1",
    "propcache==0.5.4",
    "yarl==1.25.1",
)

BUNDLES = {
    "client": Bundle(
        (
            *_TELEMETRY,
            *_PYDANTIC,
            *_AIOHTTP,
            *("opentelemetry-semantic-conventions==0.66b2", "msgspec==0.22.0", "duckdb==2.0.0", "openai==3.54.0"),
            *(
                "httpx2==2.16.2",
                "jiter==0.19.0",
                "distro==1.9.0",
                "sniffio==1.3.1",
                "starlette==1.0.1",
                "uvicorn==0.54.0",
            ),
            *("httptools==0.9.0", "zstandard==0.25.0", "pyarrow==26.0.1", "click==8.5.1"),
            "protobuf==7.36.2",
        ),
        without=(
            *("duckdb/experimental/*", "adbc_driver_duckdb/*", "zstandard/_cffi*"),  # zstandard has its C backend
            *("pyarrow/*_flight*", "pyarrow/*_s3*"),
        ),
        imports=("arttrace", "arttrace.store", "openai", "trainer.gateway.app", "trainer.grpo.batch"),
    ),
    "trl": Bundle(
        ("trl==1.15.0", *_DATASETS),
        without=("trl/skills/*", "trl/templates/*"),
        imports=("trl", "trl.trainer.grpo_trainer"),
    ),
    "liger": Bundle(("liger-kernel==0.8.5",), imports=("liger_kernel.transformers.monkey_patch",)),
    "trl-tree": Bundle(
        ("trl==1.16.0",),
        only=("trl/experimental/async_grpo/packing.py",),
        imports=("benchmarks.card.trl_tree as tree; tree.load()",),
    ),
    "unsloth": Bundle(
        (
            *("unsloth==2026.10.9", "unsloth_zoo==2026.10.9", "bitsandbytes==0.50.2", "cut-cross-entropy==25.1.1"),
            *("tyro==1.0.17", "docstring-parser==0.18.0", "typeguard==4.6.0", "hf-transfer==0.1.9"),
            *("torchao==0.18.0", "diffusers==0.42.1", "importlib-metadata==10.2.0", "msgspec==0.22.0"),
            *_PYDANTIC,
        ),
        without=(
            *("studio/*", "unsloth_cli/*", "bitsandbytes/libbitsandbytes_[!c]*", "bitsandbytes/libbitsandbytes_cpu*"),
            *("bitsandbytes/libbitsandbytes_cuda11*", "bitsandbytes/libbitsandbytes_cuda12*"),
        ),
        imports=("unsloth",),
        needs=("trl",),
    ),
    "vllm": Bundle(
        (
            *("vllm==0.24.0", "apache-tvm-ffi==0.1.11", "astor==0.8.1", "blake3==1.0.11", "cachetools==8.0.1"),
            *("cbor2==6.3.0", "compressed-tensors==0.17.0", "depyf==0.20.0", "dill==0.4.1", "diskcache==5.6.3"),
            *("fastapi==0.136.3", "ijson==3.6.0", "interegular==0.3.3", "jmespath==1.1.0", "lark==1.2.2"),
            *("llguidance==1.7.0", "lm-format-enforcer==0.11.3", "model-hosting-container-standards==0.1.16"),
            *(
                "openai-harmony==0.0.8",
                "outlines-core==0.2.14",
                "partial-json-parser==0.2.1.1.post7",
                "pybase64==1.5.1",
            ),
            *("prometheus-fastapi-instrumentator==8.1.0", "pydantic-extra-types==2.11.1", "python-json-logger==4.2.0"),
            *(
                "python-multipart==0.0.34",
                "pyzmq==27.3.0",
                "setproctitle==1.3.8",
                "watchfiles==1.3.0",
                "xgrammar==0.2.8",
            ),
            *("jsonschema==4.26.0", "jsonschema-specifications==2025.9.1", "referencing==0.37.0"),
            *("rpds-py==2026.9.1", "mcp==1.30.0"),
        ),
        without=(
            *("vllm/third_party/deep_gemm/*", "vllm/third_party/fmha_sm100/*", "vllm/vllm-rs", "vllm/_rust_*"),
            *("vllm/_moe_C*", "vllm/_flashmla*", "vllm/_qutlass*", "vllm/vllm_flash_attn/_vllm_fa2*"),
            *("vllm/benchmarks/*", "vllm/vllm_flash_attn/cute/*"),
        ),
        imports=("vllm.entrypoints.openai.api_server", "vllm.v1.engine.core", "vllm.v1.worker.gpu_worker"),
        needs=("client",),
    ),
}
"""vLLM's: without kernels of mixtures of experts, for which a bundle has no room beside FlashAttention 3."""


def make(name: str, folder: Path, wheels: Path, architecture: int) -> Path:
    """The bundle as a file in `folder`; wheels that are in `wheels` already are not fetched again."""
    bundle = BUNDLES[name]
    folder.mkdir(parents=True, exist_ok=True)
    fetch(bundle, wheels)
    packed = folder / f"{name}.tar.xz"
    with tempfile.TemporaryDirectory() as scratch:
        site = Path(scratch) / "site"
        for package in bundle.packages:
            _unzip(_wheel(package, wheels), site)
        thin(site, bundle.without, architecture, bundle.only)
        if name == "client":
            _as_installed(site)
        half = Path(scratch) / packed.name
        with tarfile.open(half, "w:xz", preset=2) as archive:
            archive.add(site, arcname=".", filter=_plain)
        shutil.move(half, packed)
    return packed


def fetch(bundle: Bundle, wheels: Path) -> None:
    """What of the bundle is not in `wheels` yet, from the package index."""
    wheels.mkdir(parents=True, exist_ok=True)
    missing = [package for package in bundle.packages if not _found(package, wheels)]
    if missing:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version", PYTHON, "--implementation", "cp", "--dest", str(wheels)]
        command += [f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBC]
        command += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]
        subprocess.run([*command, *missing], check=True)


def thin(site: Path, without: tuple[str, ...], architecture: int, only: tuple[str, ...] = ("*",)) -> None:
    """Remove what is not run there."""
    for path in sorted(site.rglob("*"), reverse=True):
        name = path.relative_to(site).as_posix()
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif any(fnmatch.fnmatch(name, pattern) for pattern in (*_NEVER_RUN, *without)) or not any(
            fnmatch.fnmatch(name, pattern) for pattern in only
        ):
            path.unlink()
        elif path.suffix == ".so":
            keep_architecture(path, architecture)


_NEVER_RUN = (
    *("*/tests/*", "*/test/*", "*.pyi", "*.h", "*.hpp", "*.cuh", "*.cu", "*.md", "*.jpg", "*.png", "*.js", "*.css"),
    *("*.dist-info/RECORD", "*.dist-info/licenses/*", "*.cpython-31[!2]-*.so", "*/share/*"),
)


def unpack(folder: Path, into: Path) -> list[Path]:
    """Unpack the bundles in `folder`, and name the directories of all that were ever unpacked in `into`, for
    PYTHONPATH."""
    for packed in sorted(folder.glob("*.tar.xz")) if folder.is_dir() else ():
        target = into / packed.name.removesuffix(".tar.xz")
        if not target.exists():
            half = target.with_suffix(".part")
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir(parents=True)
            with tarfile.open(packed) as archive:
                archive.extractall(half, filter="data")
            half.rename(target)
    return sorted(path for path in into.glob("*") if path.is_dir() and path.suffix != ".part") if into.is_dir() else []


def remedy(name: str) -> str:
    """What is said where a bundle is missing."""
    return f"needs bundle {name}, made by `python benchmarks/card/bundle.py {name}`"


def remedy_for(module: str | None) -> str:
    """What is said where this module is missing; "" where no bundle has it."""
    name = (module or "").partition(".")[0].replace("_", "-")
    holds = [
        key
        for key, one in BUNDLES.items()
        if any(f"{package}-".startswith((f"{name}=", f"{name}-")) for package in one.packages)
    ]
    return remedy(holds[0]) if name and holds else ""


def missing_for_vllm() -> list[str]:
    """What is to be said, bundle by bundle, where vLLM or what speaks to it is not installed."""
    return [remedy(name) for module, name in (("duckdb", "client"), ("vllm", "vllm")) if not _installed(module)]


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def try_imports(name: str, folder: Path, python: str) -> str:
    """ "" when that Python imports what the bundle is for, else the last line of the failure."""
    with tempfile.TemporaryDirectory() as scratch:
        into = Path(scratch)
        unpack(folder, into)
        sites = [str(into / one) for one in (*BUNDLES[name].needs, name) if (into / one).is_dir()]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sites, str(ROOT)])}
        code = "\n".join(f"import {module}" for module in BUNDLES[name].imports)
        done = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=False)
        lines = done.stderr.strip().splitlines()
        return "" if done.returncode == 0 else (lines or [f"exit code {done.returncode}"])[-1]


def _found(package: str, wheels: Path) -> list[Path]:
    name, _, version = package.partition("==")
    stem = f"{name.replace('-', '_')}-{version}-".lower()
    return [path for path in wheels.glob("*.whl") if path.name.lower().startswith(stem)]


def _wheel(package: str, wheels: Path) -> Path:
    return _found(package, wheels)[0]


def _unzip(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for data in site.glob("*.data"):
        for kind in ("purelib", "platlib"):
            if (data / kind).is_dir():
                shutil.copytree(data / kind, site, dirs_exist_ok=True)
        shutil.rmtree(data)


def _as_installed(site: Path) -> None:
    """What an installation would say of the clone: the trainer's commands are found by it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    shown = site / f"arttrace-{project['version']}.dist-info"
    shown.mkdir()
    (shown / "METADATA").write_text(f"Metadata-Version: 2.1\nName: arttrace\nVersion: {project['version']}\n")
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in of.items()) for group, of in groups.items()]
    (shown / "entry_points.txt").write_text("\n".join(lines))


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without this machine's users and times, so that the same wheels give the same file."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _chosen(names: list[str]) -> Iterator[str]:
    """With what they need, each once."""
    wanted = [one for name in names for one in (*BUNDLES[name].needs, name)]
    yield from dict.fromkeys(wanted)


def main() -> None:
    """Makes the bundles that are named; exits with 1 where one is too large or cannot be imported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *BUNDLES], metavar="NAME", help=", ".join(BUNDLES))
    parser.add_argument("--to", type=Path, default=Path(FOLDER), help=f"where they go (default {FOLDER})")
    parser.add_argument("--wheels", type=Path, default=Path(FOLDER) / "wheels", help="where wheels are kept")
    parser.add_argument("--architecture", type=int, default=90, help="of the GPU (default 90: H100, H200)")
    parser.add_argument("--try", dest="python", metavar="PYTHON", help="import each with this Python afterwards")
    given = parser.parse_args()
    sound = True
    for name in _chosen(given.names or list(BUNDLES)):
        packed = make(name, given.to, given.wheels, given.architecture)
        size = packed.stat().st_size
        line = f"{packed}: {size / (1 << 20):.1f} MiB, {len(BUNDLES[name].packages)} packages"
        if size > LIMIT:
            line, sound = f"{line}: more than {LIMIT >> 20} MiB", False
        if given.python:
            wrong = try_imports(name, given.to, given.python)
            line, sound = f"{line}; {wrong or 'imports: ' + ', '.join(BUNDLES[name].imports)}", sound and not wrong
        print(line, flush=True)
    raise SystemExit(0 if sound else 1)


if __name__ == "__main__":
    main()
