from __future__ import annotations

import errno
import os

import pytest

from calibrant.core.atomic import atomic_write, check_target
from calibrant.core.errors import InputError


def test_replaces_whole_file_and_leaves_nothing_behind(tmp_path):
    target = tmp_path / "a.npz"
    target.write_text("old")
    with atomic_write(target) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".npz"
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_inside_keeps_the_old_file(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(TypeError), atomic_write(target) as temporary:
        temporary.write_text(temporary.write_text("half"))
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_bytes_are_on_disk_before_the_name_changes(tmp_path, monkeypatch):
    order = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda *names: (order.append("replace"), replace(*names)))
    with atomic_write(tmp_path / "a") as temporary:
        temporary.write_text("x")
    assert order == ["fsync", "replace"] + ["fsync"] * (os.name != "nt")  # Windows cannot open a folder


@pytest.mark.skipif(os.name == "nt", reason="Windows has no permission bits")
def test_permissions_of_the_old_file_stay_and_new_files_follow_the_mask(tmp_path):
    target = tmp_path / "a"
    target.write_text("old")
    target.chmod(0o640)
    with atomic_write(target) as temporary:
        temporary.write_text("new")
    assert target.stat().st_mode & 0o777 == 0o640
    plain, written = tmp_path / "plain", tmp_path / "written"
    plain.write_text("x")
    with atomic_write(written) as temporary:
        temporary.write_text("x")
    assert written.stat().st_mode == plain.stat().st_mode


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "a", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with atomic_write(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.parametrize("function", [check_target, lambda path: atomic_write(path).__enter__()])
def test_a_missing_folder_and_a_folder_as_target_are_said_in_one_line(tmp_path, function):
    with pytest.raises(InputError, match="does not exist; create it first") as caught:
        function(tmp_path / "absent" / "a")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="is a folder"):
        function(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes in folders")
@pytest.mark.parametrize("function", [check_target, lambda path: atomic_write(path).__enter__()])
def test_a_device_is_never_replaced_by_a_file(tmp_path, function):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is a device or a pipe"):
        function(tmp_path / "pipe")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize(("code", "words"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only")])
def test_trouble_while_writing_names_target_and_remedy(tmp_path, code, words):
    with pytest.raises(InputError, match=words), atomic_write(tmp_path / "a"):
        raise OSError(code, os.strerror(code))
    assert not list(tmp_path.iterdir())


def test_trouble_with_another_file_keeps_its_own_message(tmp_path):
    with pytest.raises(FileNotFoundError, match="elsewhere"), atomic_write(tmp_path / "a"):
        (tmp_path / "elsewhere").read_text()
