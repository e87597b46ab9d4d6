"""A captioner as a folder of files for any web host: the page of `meshcap serve`, with the model in the browser.

The graphs in 8 bits, the vocabulary with what the scripts of `web/` need to know of English, and onnxruntime-web, which
is no part of this package: it is read from a copy of the npm package.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshcap.captioner import Captioner
from meshcap.errors import MeshcapError
from meshcap.export.folder import export_captioner
from meshcap.files import expect_free, new_folder, open_regular, read_regular, write_bytes
from meshcap.options import WORDS
from meshcap.text import Vocabulary
from meshcap.text import sentence as english

PAGE = Path(__file__).resolve().parent.parent / "serving" / "page"  # files alone: the server is not needed
SCRIPTS = Path(__file__).resolve().parent / "web"
PACKAGE = "onnxruntime-web"
WANTED = f"get it by `npm pack {PACKAGE}` and give --runtime {PACKAGE}-VERSION.tgz"
LARGEST = 100 * 2**20  # bytes of a file of the runtime
MOST = 200 * 2**20  # of all that are kept
WHOLE = 2**30  # of the package, unpacked
# What the page may load: its own files, and nothing of another host. WebAssembly counts as eval.
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'"
)


def export_web(captioner: Captioner, folder: str | Path, *, runtime: str | Path, name: str = "captioner") -> list[Path]:
    """Write a page that captions pictures in the browser, into a folder that appears whole or not at all.

    Args:
        runtime: the npm package onnxruntime-web: its folder, or the archive that `npm pack` makes.
        name: of the model, as the page shows it.

    Returns:
        The files that were written.

    Raises:
        MeshcapError: no such package, a captioner that cannot be exported, a folder that is not empty.
    """
    expect_free(folder)
    read = runtime_reader(Path(runtime))
    files = {one: read_regular(PAGE / one) for one in ("page.js", "page.css")}
    files |= {one.name: read_regular(one) for one in sorted(SCRIPTS.glob("*.js"))}
    runtimes = {"wasm": add_runtime(read, "wasm", files)}
    if (gpu := add_runtime(read, "webgpu", files)) is not None:
        runtimes["webgpu"] = gpu
    if runtimes["wasm"] is None:
        raise MeshcapError(f"{runtime} is another version of {PACKAGE} than can be used here: {WANTED}")
    with new_folder(folder) as part:
        graphs = part / "graphs"
        export_captioner(captioner, graphs, bits=8)
        about = about_model(captioner, json.loads((graphs / "runtime.json").read_text(encoding="utf-8")))
        about |= {"name": name, "runtime": runtimes, "files": {}}
        for one in ("see", "say"):
            packed_name, content = f"{one}.onnx.gz", (graphs / f"{one}.onnx").read_bytes()
            files[packed_name], about["files"][one] = packed(packed_name, content)
        for path in graphs.iterdir():
            path.unlink()
        graphs.rmdir()
        files["model.json"] = json.dumps(about, ensure_ascii=False, separators=(",", ":")).encode()
        files["index.html"] = page(read_regular(PAGE / "index.html").decode())
        listed = sorted(set(files) - {"offline.js"})
        version = hashlib.sha256(b"".join(hashlib.sha256(files[one]).digest() for one in listed)).hexdigest()[:16]
        known = {"VERSION": version, "FILES": listed, "POLICY": POLICY}
        head = "".join(f"const {key} = {json.dumps(value)};\n" for key, value in known.items())
        files["offline.js"] = head.encode() + files["offline.js"]
        for path_name, content in files.items():
            write_bytes(part / path_name, content)
    return sorted(Path(folder).iterdir())


def page(html: str) -> bytes:
    """The server's page, which asks a script of its own instead."""
    for place, more in (
        ('<meta charset="utf-8">\n', f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'),
        ('<script src="page.js" defer></script>', None),
    ):
        if html.count(place) != 1:
            raise ValueError(f"the page has no {place!r}")
        html = html.replace(place, f'<script src="local.js" defer></script>\n{place}' if more is None else place + more)
    return html.encode()


def packed(name: str, content: bytes) -> tuple[bytes, dict[str, Any]]:
    """A file as it travels: browsers unpack it, whatever the host knows of compression."""
    found = gzip.compress(content, 6, mtime=0)
    return found, {"name": name, "bytes": len(found), "size": len(content)}


def about_model(captioner: Captioner, facts: dict[str, Any]) -> dict[str, Any]:
    """All of model.json but its files: how the graphs are run, and the language."""
    vocabulary = captioner.vocabulary
    state = facts.pop("state")
    calibration = captioner.calibration
    return {
        "settings": {**facts, "tokenizer": vocabulary.tokenizer, "words": WORDS},
        "state": state,
        "words": vocabulary.words,
        "sentence": sentence_tables(vocabulary),
        "plurals": {one: many for one, many in english.plurals(vocabulary.words).items() if one in vocabulary},
        "calibration": calibration and {"weights": calibration.weights, "x": calibration.x, "y": calibration.y},
    }


def sentence_tables(vocabulary: Vocabulary) -> dict[str, Any]:
    """What `meshcap.text.sentence` knows, for its twin in web/sentence.js."""
    written = {english.join_words(["a", word], vocabulary.tokenizer).rpartition(" ")[2] for word in vocabulary.words}
    return {
        "bad_endings": sorted(english.BAD_ENDINGS),
        "open_endings": sorted(english.OPEN_ENDINGS),
        "openers": sorted(english.OPENERS),
        "counted": sorted(english.COUNTED),
        "brackets": english.BRACKETS,
        "left": sorted(english.LEFT_BOUND),
        "right": sorted(english.RIGHT_BOUND),
        "closing": sorted(english.CLOSING),
        "cased": english.CASED,
        "names": [" ".join(pair) for pair in sorted(english.NAMES)],
        "one_word": [" ".join(pair) for pair in sorted(english.ONE_WORD)],
        "an": [word for word in vocabulary.words if english.with_article(word) == "an"],
        # Of these a full stop would be read as part of the word.
        "no_stop": sorted(one for one in written if english.full_stop(one, "ptb") == one),
    }


def runtime_reader(place: Path) -> Callable[[str], bytes | None]:
    """How files of the npm package are read; None for one that it has not.

    Raises:
        MeshcapError: it is no such package.
    """
    if place.is_dir():
        near = (place, place / "node_modules" / PACKAGE, place / "package")
        places = [one for one in near if (one / "dist").is_dir()]
        if not places:
            raise MeshcapError(f"{place} holds no {PACKAGE}: {WANTED}")

        def from_folder(name: str) -> bytes | None:
            path = places[0] / "dist" / name
            if not path.is_file():
                return None
            if path.resolve().parent != path.parent.resolve() or path.stat().st_size > LARGEST:
                # What is written is for everybody to read.
                raise MeshcapError(f"{path} is a link to elsewhere, or too large: {WANTED}")
            return read_regular(path)

        return from_folder
    if not place.is_file():
        raise MeshcapError(f"there is no {place}: {WANTED}")
    found: dict[str, bytes] = {}
    try:
        with open_regular(place) as file, tarfile.open(fileobj=file, mode="r|gz") as archive:
            for member in archive:  # nothing is unpacked to a disk
                if archive.offset > WHOLE:  # where the member ends, before it is read
                    raise MeshcapError(f"{place} holds more than {WHOLE >> 20} MB: {WANTED}")
                folder, _, name = member.name.rpartition("/")
                if folder == "package/dist" and NEEDED.fullmatch(name) and member.isreg() and member.size <= LARGEST:
                    content = archive.extractfile(member)
                    found[name] = b"" if content is None else content.read()
                    if sum(map(len, found.values())) > MOST:
                        raise MeshcapError(f"{place} holds more than {MOST >> 20} MB for WebAssembly: {WANTED}")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise MeshcapError(f"{place} is no archive of {PACKAGE} ({error}): {WANTED}") from error
    return found.get


NEEDED = re.compile(r"ort\.(wasm|webgpu)\.min\.mjs|ort-wasm-simd-threaded(\.\w+)?\.(mjs|wasm)")


def add_runtime(read: Callable[[str], bytes | None], kind: str, files: dict[str, bytes]) -> dict[str, Any] | None:
    """Add onnxruntime-web for WebAssembly alone or with WebGPU to the files; None: this version has none."""
    main = read(f"ort.{kind}.min.mjs")
    named = re.search(rb"ort-wasm-simd-threaded(\.\w+)?(?=\.mjs)", main or b"")
    if main is None or named is None:
        return None
    stem = named[0].decode()
    glue, wasm = read(f"{stem}.mjs"), read(f"{stem}.wasm")
    if glue is None or wasm is None:
        return None
    # Not every host knows what .mjs is.
    own = {"main": f"ort.{kind}.js", "glue": f"{stem}.js"}
    files |= {own["main"]: re.sub(rb"//# sourceMappingURL=\S+", b"", main), own["glue"]: glue}
    files[f"{stem}.wasm.gz"], told = packed(f"{stem}.wasm.gz", wasm)
    return {**own, "wasm": told}
