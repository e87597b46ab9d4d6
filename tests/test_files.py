"""Files appear whole or not at all."""

from pathlib import Path

import pytest

from meshcap.errors import MeshcapError
from meshcap.files import write_beside


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    write_beside(path, lambda part: part.write_text("first"))
    assert path.read_text() == "first"
    return path


def test_replaces(path: Path) -> None:
    def write(part: Path) -> None:
        part.write_text("second")
        assert path.read_text() == "first"  # whoever reads meanwhile

    write_beside(path, write)
    assert path.read_text() == "second"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("a bug"), KeyboardInterrupt()])
def test_a_failing_writer_leaves_the_old_file_and_no_other(path: Path, error: BaseException) -> None:
    def fail(part: Path) -> None:
        part.write_text("half of the sec")
        raise error

    with pytest.raises(MeshcapError if isinstance(error, OSError) else type(error)) as caught:
        write_beside(path, fail)
    if isinstance(error, OSError):
        assert str(caught.value) == f"{path} cannot be written: No space left on device"
    assert path.read_text() == "first"
    assert list(path.parent.iterdir()) == [path]


def test_a_writer_that_writes_nothing(path: Path) -> None:
    with pytest.raises(MeshcapError, match="cannot be written"):
        write_beside(path, lambda part: None)
    assert path.read_text() == "first"


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match="cannot be written: No such file or directory"):
        write_beside(tmp_path / "nowhere" / "file", lambda part: part.write_text("first"))


def test_files_have_the_rights_that_others_of_this_user_have(tmp_path: Path) -> None:
    def secretive(part: Path) -> None:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)

    write_beside(tmp_path / "a", secretive)
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
