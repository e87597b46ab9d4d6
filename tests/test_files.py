"""Files appear whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from meshcap.errors import MeshcapError
from meshcap.files import edit_bytes, expect_free, new_folder, remove_unfinished, write_bytes, write_file, write_text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    write_file(path, lambda part: part.write_text("first"))
    assert path.read_text() == "first"
    return path


def test_replaces(path: Path) -> None:
    def write(part: Path) -> None:
        part.write_text("second")
        assert path.read_text() == "first"  # whoever reads meanwhile

    write_file(path, write)
    assert path.read_text() == "second"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("a bug"), KeyboardInterrupt()])
def test_a_failing_writer_leaves_the_old_file_and_no_other(path: Path, error: BaseException) -> None:
    def fail(part: Path) -> None:
        part.write_text("half of the sec")
        raise error

    with pytest.raises(MeshcapError if isinstance(error, OSError) else type(error)) as caught:
        write_file(path, fail)
    if isinstance(error, OSError):
        assert str(caught.value) == f"{path} cannot be written: No space left on device"
    assert path.read_text() == "first"
    assert list(path.parent.iterdir()) == [path]


def test_a_writer_that_writes_nothing(path: Path) -> None:
    with pytest.raises(MeshcapError, match="cannot be written"):
        write_file(path, lambda part: None)
    assert path.read_text() == "first"


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match="cannot be written: No such file or directory"):
        write_file(tmp_path / "nowhere" / "file", lambda part: part.write_text("first"))


def test_files_have_the_rights_that_others_of_this_user_have(tmp_path: Path) -> None:
    def secretive(part: Path) -> None:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)

    write_file(tmp_path / "a", secretive)
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_text_and_bytes_replace_a_file_and_keep_its_rights(path: Path) -> None:
    path.chmod(0o640)
    write_text(path, "zwei\r\n")
    assert path.read_bytes() == b"zwei\r\n" and path.stat().st_mode & 0o777 == 0o640
    write_bytes(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    write_file(path, lambda part: part.write_text("three"))
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("write", [lambda path: write_text(path, "new"), lambda path: write_file(path, into("new"))])
def test_nothing_is_written_through_a_link(tmp_path: Path, write: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who could guess the name would lay a link there first: it is refused, not followed."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    monkeypatch.setattr("meshcap.files.secrets.token_hex", lambda count: "guessed")
    (tmp_path / ".file.guessed.part").symlink_to(victim)
    with pytest.raises(MeshcapError, match="cannot be written: File exists"):
        write(tmp_path / "file")
    assert victim.read_text() == "mine" and not (tmp_path / "file").exists()


def test_a_link_in_the_place_is_replaced_not_followed(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("mine")
    link.symlink_to(victim)
    write_text(link, "new")
    assert victim.read_text() == "mine" and link.read_text() == "new" and not link.is_symlink()


def test_names_of_unfinished_files_differ(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        write_file(tmp_path / "a", lambda part: (names.add(part.parent.name), part.touch()))
    assert len(names) == 3 and all(name.startswith(".a.") and name.endswith(".part") for name in names)


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "made" / "folder"
    with pytest.raises(RuntimeError), new_folder(out) as part:
        (part / "a").write_text("a")
        assert not out.exists()
        raise RuntimeError
    assert not list(out.parent.iterdir())
    out.mkdir()  # an empty folder is no obstacle
    with new_folder(out) as part:
        (part / "in").mkdir()
        (part / "in" / "a").write_text("a")
    assert (out / "in" / "a").read_text() == "a" and list(out.parent.iterdir()) == [out]
    for taken in (out, out / "in" / "a"):
        with pytest.raises(MeshcapError, match="exists and is not an empty folder"):
            expect_free(taken)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    for name in (".a.0a1b.part", ".b.0a1b.part"):
        (tmp_path / name).write_text("half")
    (tmp_path / ".a.2c3d.part").mkdir()
    (tmp_path / ".a.2c3d.part" / "a").write_text("half")
    (tmp_path / "a").write_text("whole")
    remove_unfinished(tmp_path, "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.0a1b.part", "a"]
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def into(text: str) -> Callable[[Path], object]:
    return lambda part: part.write_text(text)


def test_editing_keeps_owner_times_rights_and_attributes(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"old")
    path.chmod(0o640)
    os.utime(path, ns=(10**18, 10**18 + 7))
    if os.getuid() == 0:
        os.chown(path, 12345, 54321)
    before = path.stat()
    edit_bytes(path, b"new")
    after = path.stat()
    assert path.read_bytes() == b"new"
    for name in ("st_uid", "st_gid", "st_mode", "st_mtime_ns"):
        assert getattr(after, name) == getattr(before, name)
    edit_bytes(path, b"newer", keep_times=False)
    assert path.stat().st_mtime_ns > before.st_mtime_ns
    assert [one.name for one in tmp_path.iterdir()] == ["a.jpg"]


def test_hard_links_are_not_parted(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"old")
    os.link(path, tmp_path / "b.jpg")
    with pytest.raises(MeshcapError, match="has 2 names"):
        edit_bytes(path, b"new")
    assert (tmp_path / "b.jpg").read_bytes() == path.read_bytes() == b"old"


def test_planted_links_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where somebody guesses the name."""
    monkeypatch.setattr("secrets.token_hex", lambda count: "guessed")
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (tmp_path / ".a.jpg.guessed.part").symlink_to(target)
    with pytest.raises(MeshcapError):
        write_bytes(tmp_path / "a.jpg", b"new")
    (tmp_path / ".b.jpg.guessed.part").symlink_to(tmp_path)
    with pytest.raises(MeshcapError):
        write_file(tmp_path / "b.jpg", lambda part: part.write_bytes(b"new"))
    assert target.read_bytes() == b"precious"
