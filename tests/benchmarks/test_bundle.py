"""Bundles for a machine without a network: what is left out, and what of a compiled library stays as it was."""

from __future__ import annotations

import struct
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.card import bundle
from benchmarks.card.fatbin import Entry, containers, keep_architecture, needless

PTX, MACHINE_CODE = 1, 2


def container(*entries: tuple[int, int, bytes]) -> bytes:
    """As a CUDA compiler writes it: a header, and an image with a header of its own for each architecture."""
    body = b""
    for kind, architecture, image in entries:
        body += (
            struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(image), 0, 0, 0, 1, architecture).ljust(64, b"\0") + image
        )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(device_code: bytes) -> bytes:
    """A 64-bit ELF file with a section of device code."""
    names = b"\0.nv_fatbin\0.shstrtab\0"
    at = 64
    table = at + len(device_code) + len(names)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HHIQQQ", 3, 62, 1, 0, 0, table)
    header += struct.pack("<IHHHHHH", 0, 64, 56, 0, 64, 3, 2)
    rows = [(0, 0, 0, 0, 0, 0), (1, 1, 2, 0, at, len(device_code)), (12, 3, 0, 0, at + len(device_code), len(names))]
    return header + device_code + names + b"".join(struct.pack("<IIQQQQ", *row).ljust(64, b"\0") for row in rows)


def test_images_of_other_architectures_are_blanked_and_nothing_moves(tmp_path: Path) -> None:
    first = container((MACHINE_CODE, 80, b"a" * 64), (MACHINE_CODE, 90, b"b" * 64), (PTX, 90, b"c" * 64))
    second = container((MACHINE_CODE, 80, b"d" * 64), (PTX, 80, b"e" * 64))
    file = tmp_path / "kernels.so"
    file.write_bytes(library(first + b"\0" * 8 + second))
    before = file.read_bytes()
    assert [len(entries) for entries in containers(before)] == [3, 2]
    assert keep_architecture(file, 90) == 3 * 64
    assert file.read_bytes() == before.replace(b"a" * 64, bytes(64)).replace(b"c" * 64, bytes(64)).replace(
        b"d" * 64, bytes(64)
    ), "machine code for 9.0 stays, and PTX where there is none"
    assert keep_architecture(file, 90) == 3 * 64, "headers are as they were"


@pytest.mark.parametrize(
    ("held", "kept"),
    [
        ([(True, 80), (True, 90), (True, 100)], [(True, 90)]),
        ([(True, 80), (False, 80), (False, 90), (False, 100)], [(False, 90)]),
        ([(True, 80), (True, 86)], []),
        ([(True, 90), (True, 90)], [(True, 90), (True, 90)]),
    ],
)
def test_what_a_card_would_choose_is_kept(held: list[tuple[bool, int]], kept: list[tuple[bool, int]]) -> None:
    entries = [Entry(code, architecture, 100 * at, 100) for at, (code, architecture) in enumerate(held)]
    without = needless(entries, 90)
    assert [(one.machine_code, one.architecture) for one in entries if one not in without] == kept


def test_a_bundle_is_made_carried_unpacked_once_and_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "some_kernels-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in {
            "some_kernels/__init__.py": "from some_kernels.inner import VALUE",
            "some_kernels/inner.py": "VALUE = 3",
            "some_kernels/tests/test_inner.py": "raise SystemExit",
            "some_kernels/include/kernel.h": "int x;",
            "some_kernels/front/index.py": "",
            "some_kernels-1.0.dist-info/METADATA": "Name: some-kernels\nVersion: 1.0\n",
        }.items():
            wheel.writestr(name, text)
    made = bundle.Bundle(("some-kernels==1.0",), without=("some_kernels/front/*",), imports=("some_kernels",))
    monkeypatch.setitem(bundle.BUNDLES, "some", made)
    packed = bundle.make("some", tmp_path / "bundles", wheels, 90)
    assert bundle.make("some", tmp_path / "again", wheels, 90).read_bytes() == packed.read_bytes()
    (site,) = bundle.unpack(tmp_path / "bundles", tmp_path / "unpacked")
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    assert files == {
        "some_kernels/__init__.py",
        "some_kernels/inner.py",
        "some_kernels-1.0.dist-info/METADATA",
    }
    packed.unlink()
    assert bundle.unpack(tmp_path / "bundles", tmp_path / "unpacked") == [site], "it stays for the next call"
    assert bundle.try_imports("some", tmp_path / "again", sys.executable) == ""
    broken = bundle.Bundle(made.packages, imports=("some_kernels.missing",))
    monkeypatch.setitem(bundle.BUNDLES, "some", broken)
    assert "some_kernels.missing" in bundle.try_imports("some", tmp_path / "again", sys.executable)


def test_every_package_is_pinned_and_every_need_is_a_bundle() -> None:
    for name, one in bundle.BUNDLES.items():
        assert all(package.count("==") == 1 for package in one.packages), name
        assert len({package.partition("==")[0] for package in one.packages}) == len(one.packages), name
        assert set(one.needs) <= bundle.BUNDLES.keys()
        assert one.imports


def test_a_missing_module_is_said_by_the_bundle_that_has_it() -> None:
    assert bundle.remedy_for("msgspec.json") == bundle.remedy("client")
    assert bundle.remedy_for("opentelemetry.trace") == bundle.remedy("client")
    assert bundle.remedy_for("trl.trainer") == bundle.remedy("trl")
    assert bundle.remedy_for("pydantic_core") == bundle.remedy("client")
    assert bundle.remedy_for("vllm") == bundle.remedy("vllm")
    assert bundle.remedy_for("torch") == bundle.remedy_for(None) == ""
