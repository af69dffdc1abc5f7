"""Small states, and several hundred ways in which one can be damaged, forged or foreign."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fluxguard import manifest
from fluxguard.manifest import Manifest

SEED = 20250607
ATTEMPT = "6f1e7c1a-0000-4000-8000-00000000a77e"
NEEDED = ("train_state.json", "model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl")
FILES = (*NEEDED, "random_states_1.pkl", "fluxguard-random.json", manifest.NAME)
ARCHIVES = [name for name in NEEDED if name.endswith((".bin", ".pkl"))]
FLIPS = 260


@dataclass(frozen=True)
class Damage:
    """One thing that can be wrong with a state."""

    kind: str
    label: str
    do: Callable[[Path], object]
    bare: bool = False
    """Whether it happens to a state without a manifest, as an unhardened trainer leaves it."""


def safetensors(tensors: Mapping[str, tuple[str, list[int], bytes]], metadata: bool = True) -> bytes:
    """Return a file by hand: some types, and most damages, are beyond the library."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}} if metadata else {}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    return framed(json.dumps(header).encode(), data)


def framed(header: bytes, data: bytes) -> bytes:
    """Return a header with its length in front, and data behind it."""
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def model(width: int = 6) -> bytes:
    """Return the weights of a small network, of several types."""
    return safetensors(
        {
            "a.lora_down": ("F32", [2, width], struct.pack(f"<{2 * width}f", *range(2 * width))),
            "a.lora_up": ("BF16", [4], struct.pack("<4H", 0x3F80, 0xBF80, 0, 0x4000)),
            "a.alpha": ("F16", [], struct.pack("<e", 4.0)),
        }
    )


def archive(path: Path, program: bytes, **how: Any) -> None:
    """Write what torch.save would, with this pickle in it."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("state/data.pkl", program, **how)
        file.writestr("state/data/0", random.Random(path.name).randbytes(300))
        file.writestr("state/version", b"3\n")


def write(folder: Path, *, epoch: int, step: int, bare: bool = False, attempt: str = ATTEMPT) -> Path:
    """Write a whole state; `bare` without a manifest."""
    folder.mkdir()
    (folder / "train_state.json").write_text(json.dumps({"current_epoch": epoch, "current_step": step}))
    (folder / "model.safetensors").write_bytes(model())
    for name in (*ARCHIVES, "random_states_1.pkl"):
        archive(folder / name, pickle.dumps({"step": step, "name": name, "initial_lr": 1e-4}, protocol=2))
    if not bare:
        (folder / "fluxguard-random.json").write_text(json.dumps({"true_step": step, "now": {}}))
        seal(folder, true_step=step, epoch=epoch, attempt=attempt)
    return folder


def seal(folder: Path, **values: Any) -> None:
    """Write a manifest that is true of the files as they are now, whoever wrote them; `values` replace its own."""
    (folder / manifest.NAME).unlink(missing_ok=True)
    standard = {"epoch": 1, "batch": 8, "world_size": 2, "batches_per_epoch": 10, "true_step": 8, "attempt": ATTEMPT}
    made: dict[str, Any] = {**standard, "files": manifest.of_files(folder), **values}
    manifest.write(folder, Manifest(**made))


def _change(name: str, change: Callable[[bytes], bytes], *, forged: bool = False) -> Callable[[Path], object]:
    def do(folder: Path) -> None:
        path = folder / name
        path.write_bytes(change(path.read_bytes()))
        if forged:
            seal(folder)

    return do


def _cut(name: str, share: float) -> Damage:
    return Damage("cut", f"{name} to {share:g} of it", _change(name, lambda data: data[: int(len(data) * share)]))


def _flip(name: str, at: float, bit: int) -> Damage:
    def change(data: bytes) -> bytes:
        where = int(at * len(data))
        return data[:where] + bytes([data[where] ^ (1 << bit)]) + data[where + 1 :]

    return Damage("flipped", f"{name} at {at:.4f}, bit {bit} (seed {SEED})", _change(name, change))


def _torn() -> Iterator[Damage]:
    for name in FILES:
        for share in (0.0, 0.01, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.99, 0.999):
            yield _cut(name, share)
        yield Damage("missing", name, lambda folder, name=name: (folder / name).unlink())  # type: ignore[misc]
        yield Damage("grown", name, _change(name, lambda data: data + b"\0"))
    rng = random.Random(SEED)
    for _ in range(FLIPS):
        yield _flip(rng.choice(FILES), rng.random(), rng.randrange(8))


def _swap(one: str, other: str) -> Damage:
    def do(folder: Path) -> None:
        (folder / one).rename(folder / "third")
        (folder / other).rename(folder / one)
        (folder / "third").rename(folder / other)

    return Damage("swapped", f"{one} and {other}", do)


def _swapped() -> Iterator[Damage]:
    yield _swap("random_states_0.pkl", "random_states_1.pkl")
    yield _swap("optimizer.bin", "scheduler.bin")
    yield _swap("optimizer.bin", "random_states_0.pkl")
    yield _swap("train_state.json", "fluxguard-random.json")
    for name in FILES:
        yield Damage("swapped", f"{name} of another state", lambda folder, name=name: _of_other(folder, name))  # type: ignore[misc]


def _of_other(folder: Path, name: str) -> None:
    other = write(folder.with_name("other"), epoch=1, step=7)
    (other / "model.safetensors").write_bytes(model().replace(b"\x00\x00\x80\x3f", b"\x00\x00\x80\x40"))
    (other / name).rename(folder / name)
    shutil.rmtree(other)


def _header(label: str, change: Callable[[dict[str, Any]], object]) -> Iterator[Damage]:
    def rewrite(data: bytes) -> bytes:
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + length])
        change(header)
        return framed(json.dumps(header).encode(), data[8 + length :])

    yield from _both("header", label, "model.safetensors", rewrite)


def _both(kind: str, label: str, name: str, change: Callable[[bytes], bytes]) -> Iterator[Damage]:
    """Yield a damage under a manifest that was forged to fit it, and in a state without one."""
    yield Damage(kind, f"{label}, under a forged manifest", _change(name, change, forged=True))
    yield Damage(kind, f"{label}, without a manifest", _change(name, change), bare=True)


def _headers() -> Iterator[Damage]:
    name = "model.safetensors"
    for length in (0, 1, 7, 1 << 16, 1 << 26, 100_000_000, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
        yield from _both("header", f"of {length}", name, lambda data, n=length: struct.pack("<Q", n) + data[8:])  # type: ignore[misc]
    for text in (b"", b"[]", b"null", b"{", b'"x"', b"\xff\xfe", b"[" * 5000, b'{"a":' * 5000, b"{}", b"nan"):
        yield from _both("header", f"{text[:6]!r}", name, lambda data, text=text: framed(text, data[-100:]))  # type: ignore[misc]
    down, up = "a.lora_down", "a.lora_up"

    def put(tensor: str, key: str, value: object) -> Callable[[dict[str, Any]], object]:
        return lambda header: header[tensor].__setitem__(key, value)

    for label, begin, end in (
        ("nested", 0, 8), ("overlapping", 40, 48), ("a hole", 56, 64), ("beyond the end", 48, 1 << 50),
        ("backwards", 56, 48), ("negative", -8, 0), ("far away", 1 << 62, (1 << 62) + 8),
    ):  # fmt: skip
        yield from _header(f"offsets {label}", put(up, "data_offsets", [begin, end]))
    for value in ([0], [0, 1, 2], "0,48", [0.0, 48.0], [True, 48], None, [[0], [48]]):
        yield from _header(f"offsets {value!r}", put(down, "data_offsets", value))
    for shape in ([2, 7], [12, 2], [-2, -6], [2.0, 6.0], "26", None, [1 << 40, 1 << 40], [0], [[2, 6]]):
        yield from _header(f"shape {shape!r}", put(down, "shape", shape))
    for dtype in ("F31", "f32", "", None, 4, "F64", ["F32"]):
        yield from _header(f"type {dtype!r}", put(down, "dtype", dtype))
    yield from _header("an unknown key", put(down, "then", 1))
    yield from _header("no tensor of its data", lambda header: header.pop(down))
    twice = b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    yield from _both("header", "a name twice", name, lambda _: framed(twice, b""))


def _numbers() -> Iterator[Damage]:
    bad: dict[str, tuple[bytes, ...]] = {
        "F64": tuple(struct.pack("<d", value) for value in (float("nan"), float("inf"), -float("inf"))),
        "F32": (*(struct.pack("<f", value) for value in (float("nan"), -float("inf"))), b"\x01\0\x80\x7f"),
        "F16": tuple(struct.pack("<e", value) for value in (float("nan"), float("inf"), -float("inf"))),
        "BF16": (b"\x80\x7f", b"\x80\xff", b"\xc0\x7f", b"\x81\xff"),
        "F8_E4M3": (b"\x7f", b"\xff"),
        "F8_E5M2": (b"\x7c", b"\x7d", b"\x7f", b"\xfc", b"\xff"),
    }
    for dtype, values in bad.items():
        for value in values:
            for at in (0, 1, 500):
                data = b"\0" * len(value) * at + value + b"\0" * len(value) * (500 - at)
                whole = safetensors({"one": ("U8", [3], b"abc"), "lora": (dtype, [501], data)})
                label = f"{dtype} {value.hex()} at {at}"
                yield from _both("not finite", label, "model.safetensors", lambda _, whole=whole: whole)  # type: ignore[misc]


def bombs(canary: str) -> dict[str, bytes]:
    """Return pickles that would make a file at `canary` when they are loaded."""
    command = f"open({canary!r}, 'w').close()"
    text = command.encode()
    shell = f"touch {canary}".encode()
    push = b"X" + struct.pack("<I", len(text)) + text
    nested = pickle.dumps(command)

    class Reduced:
        def __reduce__(self) -> tuple[Any, ...]:
            return eval, (command,)

    name = b"\x8c\x08builtins\x94\x8c\x04exec\x94"
    return {
        **{f"reduce, protocol {number}": pickle.dumps({"x": Reduced()}, protocol=number) for number in range(6)},
        "posix.system": b"\x80\x02cposix\nsystem\nX" + struct.pack("<I", len(shell)) + shell + b"\x85R.",
        "os.system": b"cos\nsystem\n(S'" + shell + b"'\ntR.",
        "nt.system": b"cnt\nsystem\n(S'" + shell + b"'\ntR.",
        "subprocess": b"csubprocess\ncall\n((lp0\nS'touch'\naS'" + canary.encode() + b"'\natR.",
        "inst": b"(S'" + shell + b"'\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nS'" + shell + b"'\no.",
        "python 2's eval": b"\x80\x02c__builtin__\neval\n" + push + b"\x85R.",
        "exec of two texts": b"\x80\x04" + name + b"\x93" + push + b"\x85R.",
        "a name recalled from memory": b"\x80\x04" + name + b"0" + b"h\x00h\x01\x93" + push + b"\x85R.",
        "a name put together": b"\x80\x04\x8c\x08builtins2\x8c\x04exec\x93" + push + b"\x85R.",
        "getattr": b"\x80\x02cbuiltins\ngetattr\ncbuiltins\n__dict__\nX\x04\0\0\0exec\x86R" + push + b"\x85R.",
        "a dotted name": b"\x80\x04\x8c\x05torch\x94\x8c\x09os.system\x94\x93" + push + b"\x85R.",
        "numpy's own": b"\x80\x02cnumpy.testing._private.utils\nrunstring\n" + push + b"}\x86R.",
        "a pickle in a pickle": b"\x80\x02ctorch.storage\n_load_from_bytes\nB"
        + struct.pack("<I", len(nested)) + nested + b"\x85R.",
        "torch.load": b"\x80\x02ctorch\nload\nX" + struct.pack("<I", len(shell)) + shell + b"\x85R.",
        "torch.hub": b"\x80\x02ctorch.hub\nload\n" + push + b"\x85R.",
        "importlib": b"\x80\x02cimportlib\nimport_module\nX\x02\0\0\0os\x85R.",
        "functools.partial": b"\x80\x02cfunctools\npartial\ncbuiltins\nexec\n" + push + b"\x86R).",
        "an extension": b"\x80\x02\x82\x01" + push + b"\x85R.",
        "no pickle at all": b"hello",
        "an empty one": b"",
        "one cut short": pickle.dumps({"a": list(range(50))})[:-20],
        "two in a row": pickle.dumps({}) + pickle.dumps({"x": Reduced()}, protocol=2),
    }  # fmt: skip


def _bombed(canary: Path) -> Iterator[Damage]:
    for label, program in bombs(str(canary)).items():
        for name in ARCHIVES:
            yield Damage("bomb", f"{label} in {name}", _armed(name, program, bare=True), bare=True)
        yield Damage("bomb", f"{label}, under a forged manifest", _armed("optimizer.bin", program, bare=False))
        yield from _both("bomb", f"{label} as a bare pickle", "scheduler.bin", lambda _, text=program: text)  # type: ignore[misc]
        if program:
            yield from _both("bomb", f"{label} in front", "optimizer.bin", _put_in_front(program))


def _put_in_front(program: bytes) -> Callable[[bytes], bytes]:
    return lambda data: program + data


def _armed(name: str, program: bytes, *, bare: bool) -> Callable[[Path], object]:
    def do(folder: Path) -> None:
        archive(folder / name, program)
        if not bare:
            seal(folder)

    return do


def _archives() -> Iterator[Damage]:
    name = "optimizer.bin"

    def again(change: Callable[[zipfile.ZipFile], object], **how: Any) -> Callable[[Path], object]:
        def do(folder: Path) -> None:
            archive(folder / name, pickle.dumps({}, protocol=2), **how)
            with zipfile.ZipFile(folder / name, "a") as file:
                change(file)

        return do

    def comment(file: zipfile.ZipFile) -> None:
        file.comment = b"something"

    empty = pickle.dumps({})
    wrong: dict[str, Callable[[Path], object]] = {
        "a second program": again(lambda file: file.writestr("state/other.pkl", empty)),
        "a second archive in it": again(lambda file: file.writestr("other/data.pkl", empty)),
        "torch script": again(lambda file: file.writestr("state/code/__torch__.py", b"pass")),
        "a comment": again(comment),
        "compressed": again(lambda _: None, compress_type=zipfile.ZIP_DEFLATED),
        "swelling": again(lambda file: file.writestr("state/data/9", bytes(1 << 22), zipfile.ZIP_DEFLATED)),
        "no program": _change(name, lambda _: b"PK\x05\x06" + bytes(18)),
        "torch's old format": _change(name, lambda _: b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + empty),
        "flipped data": _change(name, lambda data: _flipped(data, data.index(b"state/data/0") + 40)),
        "flipped program": _change(name, lambda data: _flipped(data, data.index(b"optimizer"))),
        "a wrong local header": _change(name, lambda data: _flipped(data, data.index(b"state/data/0"))),
        "a declared size": _change(name, lambda data: _flipped(data, data.rindex(b"PK\x01\x02") + 26)),
    }
    for label, do in wrong.items():
        yield Damage("archive", label, do, bare=True)


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


def _places(outside: Path) -> Iterator[Damage]:
    def replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
        def do(folder: Path) -> None:
            (folder / name).unlink()
            make(folder / name)

        return do

    kinds: dict[str, Callable[[Path], object]] = {
        "a link to a file": lambda path: path.symlink_to(outside),
        "a link to nothing": lambda path: path.symlink_to(path.parent / "nowhere"),
        "a link to itself": lambda path: path.symlink_to(path),
        "a device": lambda path: path.symlink_to("/dev/zero"),
        "a folder": lambda path: path.mkdir(),
    }
    if hasattr(os, "mkfifo"):
        kinds["a pipe"] = lambda path: os.mkfifo(path)
    for label, make in kinds.items():
        for name in FILES:
            yield Damage("place", f"{name} is {label}", replaced(name, make))
        if label != "a folder":
            yield Damage("place", f"{label} besides", lambda folder, make=make: make(folder / "x.bin"))  # type: ignore[misc]
        for name in NEEDED:
            yield Damage("place", f"{name} is {label}, without a manifest", replaced(name, make), bare=True)
    yield Damage("place", "a stray file", lambda folder: (folder / "pytorch_model.bin").write_bytes(b"x"))
    yield Damage("place", "a file below a link", lambda folder: _linked_folder(folder, outside))


def _linked_folder(folder: Path, outside: Path) -> None:
    seal(
        folder,
        files={**manifest.of_files(folder), f"below/{outside.name}": manifest.digest(outside.parent, outside.name)},
    )
    (folder / "below").symlink_to(outside.parent)


def _manifests(outside: Path) -> Iterator[Damage]:
    size, sha = manifest.digest(outside.parent, outside.name)
    for name in (
        f"../{outside.name}", f"x/../../{outside.name}", str(outside), "//x", "C:\\x", "..\\x", "\\\\host\\x", "", ".",
        "..", "a//b", "a/./b", "./model.safetensors", "x\0y", "model.safetensors/", "C:x", manifest.NAME,
    ):  # fmt: skip
        yield Damage("manifest", f"names {name!r}", lambda folder, n=name: _naming(folder, n, (size, sha)))  # type: ignore[misc]
    for key in ("true_step", "epoch", "batch", "world_size", "batches_per_epoch"):
        for value in (-1, 1.0, "8", True, None, [8]):
            yield Damage("manifest", f"{key} is {value!r}", lambda folder, k=key, v=value: _said(folder, {k: v}))  # type: ignore[misc]
        yield Damage("manifest", f"without {key}", lambda folder, k=key: _said(folder, {}, without=k))  # type: ignore[misc]
    for version in (0, 3, "2", None, True, 2.5):
        yield Damage("manifest", f"of version {version!r}", lambda folder, v=version: _said(folder, {"version": v}))  # type: ignore[misc]
    told: tuple[Any, ...] = ({}, [], None, {"model.safetensors": 5}, {"model.safetensors": [1, 2, 3]})
    for files in told:
        yield Damage("manifest", f"files are {files!r}", lambda folder, f=files: _said(folder, {"files": f}))  # type: ignore[misc]
    yield Damage("manifest", "an unknown key", lambda folder: _said(folder, {"extra": 1}))
    yield Damage("manifest", "without its digest", lambda folder: _said(folder, {}, without="digest"))
    for key in ("true_step", "files", "version"):
        twice = f'{{"{key}": 8, '.encode()
        yield Damage("manifest", f"{key} twice", _change(manifest.NAME, lambda data, t=twice: t + data[1:]))  # type: ignore[misc]
    for text in (b"", b"[]", b"null", b"[" * 100_000, b'{"version": 2}', b"\xff", b" " * (5 << 20)):
        yield Damage("manifest", f"{text[:8]!r}", _change(manifest.NAME, lambda _, t=text: t))  # type: ignore[misc]


def _naming(folder: Path, name: str, what: tuple[int, str]) -> None:
    seal(folder, files={**manifest.of_files(folder), name: what})


def _said(folder: Path, values: dict[str, Any], without: str = "") -> None:
    """Let a manifest say something else, with a digest that fits."""
    path = folder / manifest.NAME
    told = {**json.loads(path.read_bytes()), **values}
    told["digest"] = manifest.own_digest(told)
    told.pop(without, None)
    path.write_text(json.dumps(told))


def _foreign() -> Iterator[Damage]:
    yield Damage("foreign", "of another run", lambda folder: seal(folder, attempt=ATTEMPT.replace("7", "8")))
    yield Damage("foreign", "of one process", lambda folder: seal(folder, world_size=1))
    yield Damage("foreign", "of four processes", lambda folder: seal(folder, world_size=4))
    yield Damage("foreign", "beyond the plan", lambda folder: seal(folder, true_step=41))
    yield from _both("foreign", "another rank of the LoRA", "model.safetensors", lambda _: model(8))
    renamed = model().replace(b"a.lora_up", b"b.lora_up")
    yield from _both("foreign", "another name", "model.safetensors", lambda _: renamed)
    typed = model().replace(b'"F16"', b'"I16"')
    yield from _both("foreign", "another type", "model.safetensors", lambda _: typed)


def all_of(canary: Path, outside: Path) -> list[Damage]:
    """Return every damage; `outside` is a file that no state may reach."""
    parts = (
        _torn(), _swapped(), _headers(), _numbers(), _bombed(canary), _archives(), _places(outside),
        _manifests(outside), _foreign(),
    )  # fmt: skip
    torn_bare = [
        replace(damage, bare=True, label=f"{damage.label}, without a manifest")
        for damage in _torn()
        if damage.kind in ("cut", "missing") and damage.label.split()[0] in NEEDED
    ]
    return [*(damage for part in parts for damage in part), *torn_bare]
