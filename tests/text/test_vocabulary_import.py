"""Vocabularies from elsewhere, and pickles that mean harm.

Every live attack is first shown to work on plain `pickle` (the marker appears), then to do nothing here.
"""

from __future__ import annotations

import contextlib
import copyreg
import json
import pickle
import sys
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshcap.errors import MeshcapError
from meshcap.text import Vocabulary, vocabulary_import
from meshcap.text.vocabulary import LARGEST_FILE, SPECIAL
from meshcap.text.vocabulary_import import read_vocabulary

WORDS = [*SPECIAL, "a", "on", "dog", "café", "猫", "🐕", " ", "\n "]


@pytest.fixture(autouse=True)
def public() -> Iterator[types.ModuleType]:
    """A stand-in for the public implementation's module, there only while a test runs."""
    module = types.ModuleType("data.vocab")
    package = types.ModuleType("data")
    code = "class Vocab: pass\nclass Field: pass\ndef _default_unk_index(): return 0"
    exec(code, module.__dict__)
    package.vocab = module  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "data", package)
        patch.setitem(sys.modules, "data.vocab", module)
        yield module


def vocab(words: list[Any], **more: object) -> Any:
    """The public implementation's object, as it stands in memory before it is pickled."""
    module = sys.modules["data.vocab"]
    made = module.Vocab()
    made.freqs = Counter({word: 7 + len(word) for word in words if isinstance(word, str)} | {"rare": 2**40})
    made.itos = words
    made.stoi = defaultdict(module._default_unk_index, {word: id for id, word in enumerate(words)})
    made.vectors = None
    vars(made).update(more)
    return made


def write(folder: Path, raw: bytes, name: str = "vocab.pkl") -> Path:
    (folder / name).write_bytes(raw)
    return folder / name


def refused(path: Path, part: str = "") -> None:
    with pytest.raises(MeshcapError) as caught:
        read_vocabulary(path)
    message = str(caught.value)
    assert path.name in message and part in message
    assert "\n" not in message and len(message) < 400


# ---------------------------------------------------------------------------------------------- the honest pickle


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("dumps", [pickle.dumps, pickle._dumps])  # type: ignore[attr-defined]  # the C pickler, the Python one
def test_every_protocol_is_read(tmp_path: Path, protocol: int, dumps: Callable[..., bytes]) -> None:
    vocabulary = read_vocabulary(write(tmp_path, dumps(vocab(WORDS), protocol)))
    assert vocabulary == Vocabulary(WORDS)


def test_the_suffix_does_not_matter(tmp_path: Path) -> None:
    for name in ("vocab", "vocab.txt", "vocab.json", "vocab.PKL"):
        assert read_vocabulary(write(tmp_path, pickle.dumps(vocab(WORDS)), name)).words == WORDS


words_of_any_kind = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.lists(words_of_any_kind, unique=True).map(lambda words: list(dict.fromkeys([*SPECIAL, *words]))))
def test_any_words_survive(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    path = write(tmp_path_factory.mktemp("p"), pickle.dumps(vocab(words), 3))
    assert read_vocabulary(path).words == words


def test_many_words_come_in_batches(tmp_path: Path) -> None:
    words = [*SPECIAL, *(f"word{i}" for i in range(5000))]  # the pickler writes lists and tables 1000 items at a time
    assert read_vocabulary(write(tmp_path, pickle.dumps(vocab(words), 3))).words == words


def test_an_unknown_word_once_looked_up_is_no_contradiction(tmp_path: Path) -> None:
    made = vocab(WORDS)
    assert made.stoi["zebra"] == 0  # a defaultdict keeps it
    assert read_vocabulary(write(tmp_path, pickle.dumps(made))).words == WORDS


def test_tables_that_disagree_are_refused(tmp_path: Path) -> None:
    made = vocab(WORDS)
    made.stoi["a"], made.stoi["on"] = made.stoi["on"], made.stoi["a"]
    refused(write(tmp_path, pickle.dumps(made)), "'a' is word 4 of `itos`")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["<unk>", "<pad>", "a"], "<bos> <eos> are missing"),
        ([*SPECIAL, "a", "a"], "`stoi` says otherwise"),
        ([*SPECIAL, ""], "not empty"),
        ([*SPECIAL, "\ud800"], "UTF-8"),
        ([], "are missing"),
        ((*SPECIAL, "a"), "without the word list"),
        (None, "without the word list"),
    ],
)
def test_word_lists_that_cannot_be(tmp_path: Path, words: Any, part: str) -> None:
    refused(write(tmp_path, pickle.dumps(vocab(list(words or []), itos=words))), part)


def test_words_that_are_not_strings(tmp_path: Path) -> None:
    made = vocab(WORDS, itos=[*WORDS, 7])
    refused(write(tmp_path, pickle.dumps(made)), "word 12 is 7")


@pytest.mark.parametrize("data", [WORDS, dict.fromkeys(WORDS, 0), "a", 7, None, Counter("aab")])
def test_plain_data_is_not_a_public_vocabulary(tmp_path: Path, data: object) -> None:
    refused(write(tmp_path, pickle.dumps(data, 3)), "without the word list")


# ---------------------------------------------------------------------------------------------- damage


def test_every_truncation_is_told(tmp_path: Path) -> None:
    for protocol in (2, 4):
        whole = pickle.dumps(vocab(WORDS), protocol)
        assert read_vocabulary(write(tmp_path, whole)).words == WORDS
        for length in range(len(whole)):
            refused(write(tmp_path, whole[:length]))


@given(st.data())
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_never_escapes_as_another_error(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(pickle.dumps(vocab(WORDS), data.draw(st.sampled_from([2, 3, 4, 5]))))
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=4)):
        raw[place] = data.draw(st.integers(0, 255))
    try:
        words = read_vocabulary(write(tmp_path, bytes(raw))).words
    except MeshcapError as error:
        assert "\n" not in str(error)
    else:
        assert all(type(word) is str for word in words)


@given(st.binary(max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_noise_is_refused(tmp_path: Path, noise: bytes) -> None:
    refused(write(tmp_path, b"\x80\x03" + noise))


@pytest.mark.parametrize("protocol", [0, 1])
def test_the_oldest_protocols_are_refused(tmp_path: Path, protocol: int) -> None:
    refused(write(tmp_path, pickle.dumps(vocab(WORDS), protocol)), "protocol 2 or later")


def test_too_large_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, pickle.dumps(vocab(WORDS)))
    with open(path, "r+b") as file:
        file.truncate(LARGEST_FILE)  # what follows the end of a pickle is not looked at
    assert read_vocabulary(path).words == WORDS
    with open(path, "r+b") as file:
        file.truncate(LARGEST_FILE + 1)
    refused(path, "larger than 64 MB")


def test_too_many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = b"\x80\x02" + b"]" * 100 + b"."
    refused(write(tmp_path, raw), "without the word list")
    monkeypatch.setattr(vocabulary_import, "MOST_STEPS", 100)
    refused(write(tmp_path, raw), "more than 100 steps")


def test_a_huge_memo_index_costs_nothing(tmp_path: Path) -> None:
    # The C unpickler would make a memo of 2**32 places for this.
    refused(write(tmp_path, b"\x80\x02]r\xff\xff\xff\xff."), "without the word list")


# ---------------------------------------------------------------------------------------------- harm

PROTO2, PROTO4 = b"\x80\x02", b"\x80\x04"


def text(value: str) -> bytes:
    """The opcode that pushes a string."""
    raw = value.encode()
    return b"X" + len(raw).to_bytes(4, "little") + raw


class Touch:
    """An object whose pickle calls something with the marker's path."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


class New:
    """Touches the marker when made."""

    def __new__(cls, path: str = "", *, also: str = "") -> New:
        Path(path or also).touch()
        return super().__new__(cls)


class State:
    """Touches the marker when given its state."""

    def __setstate__(self, path: str) -> None:
        Path(path).touch()


def own(name: str) -> bytes:
    return b"c" + f"{__name__}\n{name}\n".encode()


def hidden(**attributes: object) -> bytes:
    """A vocabulary like any other, but for one attribute."""
    return pickle.dumps(vocab(WORDS, **attributes), 3)


def call(module: str, name: str, argument: str) -> bytes:
    return b"c" + f"{module}\n{name}\n".encode() + text(argument) + b"\x85R"


LIVE: dict[str, Callable[[str], bytes]] = {
    "os.mkdir": lambda m: PROTO2 + call("os", "mkdir", m) + b".",
    "posix.system": lambda m: PROTO2 + call("posix", "system", f"touch '{m}'") + b".",
    "os.system by __reduce__": lambda m: pickle.dumps(Touch(__import__("os").system, f"touch '{m}'"), 4),
    "eval": lambda m: pickle.dumps(Touch(eval, f"open({m!r}, 'w')"), 2),
    "exec": lambda m: pickle.dumps(Touch(exec, f"open({m!r}, 'w')"), 5),
    "eval as Python 2 names it": lambda m: PROTO2 + call("__builtin__", "eval", f"open({m!r}, 'w')") + b".",
    "in an attribute": lambda m: hidden(vectors=Touch(eval, f"open({m!r}, 'w')")),
    "among the words": lambda m: hidden(itos=[*WORDS, Touch(eval, f"open({m!r}, 'w')")]),
    "among the counts": lambda m: hidden(freqs=Counter({"a": Touch(eval, f"open({m!r}, 'w')")})),
    "popped at once": lambda m: PROTO2 + call("os", "mkdir", m) + b"0" + pickle.dumps(vocab(WORDS), 2)[2:],
    "memoised": lambda m: PROTO2 + b"cos\nmkdir\nq\x00h\x00" + text(m) + b"\x85R.",
    "getattr": lambda m: (
        PROTO2
        + b"cbuiltins\ngetattr\n"
        + call("builtins", "__import__", "os")
        + text("mkdir")
        + b"\x86R"
        # and the function that came out is called
        + text(m)
        + b"\x85R."
    ),
    "operator.attrgetter": lambda m: (
        PROTO2
        + call("operator", "attrgetter", "mkdir")
        + call("builtins", "__import__", "os")
        + b"\x85R"
        + text(m)
        + b"\x85R."
    ),
    "STACK_GLOBAL": lambda m: PROTO4 + text("os") + text("mkdir") + b"\x93" + text(m) + b"\x85R.",
    "STACK_GLOBAL with dots": lambda m: PROTO4 + text("os") + text("path.os.mkdir") + b"\x93" + text(m) + b"\x85R.",
    "an allowed module, dots": lambda m: (
        PROTO4
        + text("collections")
        + text("namedtuple.__builtins__.get")
        + b"\x93"
        + text("eval")
        + b"\x85R"
        + text(f"open({m!r}, 'w')")
        + b"\x85R."
    ),
    "the default's globals": lambda m: (
        PROTO4
        + b"cbuiltins\neval\n"
        + text(f"open({m!r}, 'w')")
        + text("data.vocab")
        + text("_default_unk_index.__globals__")
        + b"\x93\x86R."
    ),
    "INST": lambda m: PROTO2 + b"(" + text(m) + b"ios\nmkdir\n.",
    "OBJ": lambda m: PROTO2 + b"(" + own("New") + text(m) + b"o.",
    "NEWOBJ": lambda m: PROTO2 + own("New") + text(m) + b"\x85\x81.",
    "NEWOBJ_EX": lambda m: PROTO4 + own("New") + b")}" + text("also") + text(m) + b"s\x92.",
    "BUILD with __setstate__": lambda m: PROTO2 + own("State") + b")\x81" + text(m) + b"b.",
    "defaultdict of another function": lambda m: (
        PROTO2 + b"ccollections\ndefaultdict\n" + call("os", "mkdir", m) + b"\x85R."
    ),
    "map run by a list": lambda m: (
        PROTO2 + b"cbuiltins\nlist\ncbuiltins\nmap\ncos\nmkdir\n]" + text(m) + b"a\x86R\x85R."
    ),
}


@pytest.mark.parametrize("attack", LIVE)
def test_attacks_do_nothing(tmp_path: Path, attack: str) -> None:
    if attack.startswith("posix") and "posix" not in sys.builtin_module_names:
        pytest.skip("no posix module here")
    marker = tmp_path / "marker"
    raw = LIVE[attack](str(marker))
    with contextlib.suppress(Exception):  # some attacks strike and then stumble
        pickle.loads(raw)
    assert marker.exists(), "this attack is a dud: it does not work on plain pickle either"
    marker.rmdir() if marker.is_dir() else marker.unlink()

    refused(write(tmp_path, raw))
    assert not marker.exists()


def test_an_extension_that_is_already_cached(tmp_path: Path) -> None:
    # The C unpickler takes cached extensions without asking find_class: a filter on names would miss this one.
    marker = tmp_path / "marker"
    raw = PROTO2 + b"\x82\xf0" + text(str(marker)) + b"\x85R."
    copyreg.add_extension("os", "mkdir", 0xF0)
    try:
        pickle.loads(raw)
        marker.rmdir()
        for code in (b"\x82\xf0", b"\x83\xf0\x00", b"\x84\xf0\x00\x00\x00"):
            refused(write(tmp_path, PROTO2 + code + text(str(marker)) + b"\x85R."), "opcode EXT")
        assert not marker.exists()
    finally:
        copyreg.remove_extension("os", "mkdir", 0xF0)
        copyreg.clear_extension_cache()


def test_a_mentioned_module_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loaded_by_pickle.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w').close()\nthing = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    raw = PROTO2 + b"cloaded_by_pickle\nthing\n."
    refused(write(tmp_path, raw), "loaded_by_pickle thing")
    assert not (tmp_path / "marker").exists() and "loaded_by_pickle" not in sys.modules
    assert pickle.loads(raw) == 1 and (tmp_path / "marker").exists()
    del sys.modules["loaded_by_pickle"]


VOCAB, UNKNOWN = b"cdata.vocab\nVocab\n", b"cdata.vocab\n_default_unk_index\n"
COUNTER, DEFAULTDICT = b"ccollections\nCounter\n", b"ccollections\ndefaultdict\n"


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"ctorch\nload\n.", "torch load"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n.", "torch._utils"),
        (b"ctorch.storage\n_load_from_bytes\n.", "torch.storag"),
        (b"cdata.vocab\nField\n.", "data.vocab Field"),
        (b"cdata.vocab\nVocab.__init__\n.", "data.vocab Vocab.__init__"),
        (b"cdata\nvocab.Vocab\n.", "data vocab.Vocab"),
        (b"ccollections\nOrderedDict\n.", "OrderedDict"),
        (b"ccopyreg\n_reconstructor\n" + VOCAB + b"cbuiltins\nobject\nN\x87R.", "copyreg _reconstructor"),
        (b"ccopy_reg\n_reconstructor\n.", "copy_reg _reconstructor"),
        (b"cfunctools\npartial\n.", "functools partial"),
        (b"Pname\n.", "PERSID"),
        (text("name") + b"Q.", "BINPERSID"),
        (b"B\x01\x00\x00\x00x.", "BINBYTES"),
        (b"\x8f.", "EMPTY_SET"),
        (b"\x97.", "NEXT_BUFFER"),
        (b"I01\n.", "opcode INT"),
        # Names are marks: they cannot be called in any other way than a vocabulary's.
        (VOCAB + b")R.", "'data.vocab Vocab'"),
        (VOCAB + text("a") + b"\x85\x81.", "'data.vocab Vocab'"),
        (UNKNOWN + b")R.", "'data.vocab _default_unk_index'"),
        (COUNTER + text("aab") + b"\x85R.", "'collections Counter'"),
        (COUNTER + b")\x81.", "'collections Counter'"),
        (DEFAULTDICT + VOCAB + b"\x85R.", "'collections defaultdict'"),
        (DEFAULTDICT + UNKNOWN + b"}\x86R.", "'collections defaultdict'"),
        (text("os system") + b")R.", "calls 'str'"),
        (COUNTER + b"]R.", "list as a tuple"),
        # BUILD: slots (setattr on whatever is there), a mark's own attributes, other objects.
        (VOCAB + b")\x81N}" + text("__class__") + COUNTER + b"s\x86b.", "tuple as a dict"),
        (VOCAB + b"N}" + text("__setstate__") + UNKNOWN + b"s\x86b.", "_Name as a _Vocab"),
        (VOCAB + b"}" + text("__setstate__") + UNKNOWN + b"sb.", "_Name as a _Vocab"),
        (b"}" + b"}b.", "dict as a _Vocab"),
        # Filling what is not plain.
        (VOCAB + b")\x81" + text("a") + b"a.", "_Vocab as a list"),
        (VOCAB + text("a") + b"Ns.", "_Name as a dict"),
        (b"]K\x00Ns.", "list as a dict"),
        (b"}K\x00Ns.", "int as a str"),
        (b"}(" + text("a") + b"u.", "damaged"),
        (text("os") + b"K\x00\x93.", "int as a str"),
        (b"\x93.", "damaged"),
        (b"t.", "damaged"),
        (b"h\x05.", "damaged"),
        (b".", "damaged"),
    ],
)
def test_what_a_vocabulary_does_not_need_is_refused(tmp_path: Path, body: bytes, part: str) -> None:
    refused(write(tmp_path, PROTO4 + body), part)


def test_attributes_of_a_pickle_stay_in_a_table(tmp_path: Path) -> None:
    # Dunder attributes in the state would change an object that took them as its own.
    made = vocab(WORDS)
    vars(made).update({"__class__": "x", "__dict__": {}, "state": {"itos": ["a"]}})
    assert read_vocabulary(write(tmp_path, pickle.dumps(made, 2))).words == WORDS


# ---------------------------------------------------------------------------------------------- JSON and text

PLAIN = [word for word in WORDS if word.strip() == word]


def test_json_forms(tmp_path: Path) -> None:
    table = {word: id for id, word in reversed(list(enumerate(WORDS)))}
    for name in ("v.json", "v"):
        assert read_vocabulary(write(tmp_path, json.dumps(WORDS).encode(), name)).words == WORDS
        assert read_vocabulary(write(tmp_path, json.dumps(table).encode(), name)).words == WORDS
    assert read_vocabulary(write(tmp_path, b"\xef\xbb\xbf" + json.dumps(WORDS).encode(), "v.json")).words == WORDS


def test_a_table_may_hold_the_word_model(tmp_path: Path) -> None:
    words = [*SPECIAL, "model", "vocab"]
    table = {word: id for id, word in enumerate(words)}
    assert read_vocabulary(write(tmp_path, json.dumps(table).encode(), "v.json")).words == words


def test_our_own_file(tmp_path: Path) -> None:
    own_file = Vocabulary(WORDS, tokenizer="char")
    own_file.save(tmp_path / "vocabulary.json")
    assert read_vocabulary(tmp_path / "vocabulary.json") == own_file


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["v.txt", "v", "v.vocab"])
def test_text_with_one_word_a_line(tmp_path: Path, end: str, name: str) -> None:
    for last in ("", end):
        raw = (end.join(PLAIN) + last).encode()
        assert read_vocabulary(write(tmp_path, raw, name)).words == PLAIN


def test_text_that_begins_like_json(tmp_path: Path) -> None:
    words = ["[", "{", '"', *SPECIAL]
    for name in ("v.txt", "v"):
        assert read_vocabulary(write(tmp_path, "\n".join(words).encode(), name)).words == words


@pytest.mark.parametrize(
    ("name", "raw", "part"),
    [
        ("v.json", b"nonsense", "is not JSON"),
        ("v.json", b"7", "JSON int"),
        ("v.json", b'["<unk>", "<pad>", "<eos>"]', "<bos> are missing"),
        ("v.json", b'["<unk>", "<pad>", "<bos>", "<eos>", 7]', "word 4 is 7"),
        ("v.json", b'{"<unk>": 0, "<pad>": 1, "<bos>": 2, "<eos>": 4}', "no word has id 3"),
        ("v.json", b'{"<unk>": 0, "<pad>": "1"}', "'<pad>' has the id '1'"),
        ("v.json", b'{"model": {"type": "BPE"}}', "'BPE'"),
        ("v.txt", b"", "line 1 is ''"),
        ("v.txt", b"<unk>\n<pad>\n\n<bos>\n<eos>\n", "line 3 is ''"),
        ("v.txt", b"<unk> 0\n<pad> 1\n", "line 1 is '<unk> 0'"),
        ("v.txt", b"<unk>\n<pad>\n<bos>\na\n", "<eos> are missing"),
        ("v", b"PK\x03\x04\xff", "neither a pickle, nor JSON, nor UTF-8"),
        ("v", b"cos\nsystem\n(S'true'\ntR.", "are missing"),  # a pickle of protocol 0 is but lines of text
    ],
)
def test_files_that_are_no_vocabulary(tmp_path: Path, name: str, raw: bytes, part: str) -> None:
    refused(write(tmp_path, raw, name), part)


def test_no_file(tmp_path: Path) -> None:
    refused(tmp_path / "vocab.pkl", "does not exist")
    refused(tmp_path, "is not a file")
