"""The pieces of a file that somebody writes to while it is sent to hosts."""

import pytest

from roost.job.sync import _PIECE_BYTES, _files_in, _pieces


@pytest.fixture
def told(tmp_path):
    """A file of two pieces, and what is told of it."""
    path = tmp_path / "log"
    path.write_bytes(b"a" * (_PIECE_BYTES + 10))
    [file] = _files_in(str(tmp_path))
    return path, file


def test_of_a_file_that_grows_there_is_as_much_as_was_told(told):
    path, file = told
    path.write_bytes(b"b" * (3 * _PIECE_BYTES))
    assert [(at, len(piece)) for at, piece in _pieces(str(path), file)] == [(0, _PIECE_BYTES), (_PIECE_BYTES, 10)]


def test_a_file_that_became_shorter_is_told(told):
    path, file = told
    path.write_bytes(b"b")
    with pytest.raises(OSError, match="has become shorter while it was sent"):
        list(_pieces(str(path), file))
