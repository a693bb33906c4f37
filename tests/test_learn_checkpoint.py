"""Where runs go on: members of a stack each from its own step, from whole checkpoints only."""

from __future__ import annotations

import json

import pytest

from nlaformer.errors import FileError
from nlaformer.io import locked_folder
from nlaformer.learn import checkpoint
from nlaformer.learn.checkpoint import member_folders
from tests.training import TINY, equal, final, interrupt_at, train


def test_a_stack_with_a_new_member_keeps_the_finished_ones(tmp_path):
    configs = [TINY.replace(seed=seed) for seed in range(3)]
    train(configs[:2], tmp_path)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    runs = train(configs, tmp_path)
    assert [run.steps for run in runs] == [12] * 3 and {path: path.read_bytes() for path in kept} == kept
    train(configs[2], tmp_path / "alone")
    assert equal(final(runs[2].folder), final(tmp_path / "alone"))


def test_members_at_different_steps_resume_each_from_its_own(tmp_path, monkeypatch):
    configs = [TINY.replace(seed=seed) for seed in range(4)]
    whole = train(configs, tmp_path / "whole")
    folders = [tmp_path / "parts" / run.folder.name for run in whole]
    for config, folder, step in zip(configs, folders, (5, 5, 8, None), strict=True):
        if step is not None:
            with monkeypatch.context() as patch, pytest.raises(SystemExit):
                interrupt_at(step, patch)
                train(config, folder, checkpoint_every=1)
    parts = checkpoint.resume(folders, configs)
    assert [(part.step, part.members) for part in parts] == [(5, [0, 1]), (8, [2]), (0, [3])]
    assert [(p.step, p.members) for p in checkpoint.resume(folders, configs, [1, 3])] == [(5, [1]), (0, [3])]
    for one, other in zip(train(configs, tmp_path / "parts"), whole, strict=True):
        assert equal(final(one.folder), final(other.folder))


def test_a_second_process_cannot_train_into_a_locked_folder(tmp_path):
    pytest.importorskip("fcntl")
    configs = [TINY.replace(seed=seed) for seed in range(2)]
    folders = member_folders(tmp_path, configs)
    train(configs, tmp_path, minutes=0)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    with locked_folder(folders[1]), pytest.raises(FileError, match=folders[1].name):
        train(configs, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == kept
    assert [run.steps for run in train(configs, tmp_path)] == [12, 12]


def test_a_folder_is_locked_from_before_it_is_read_until_the_end(tmp_path, monkeypatch):
    """Else another process could finish there in between, and its run would be overwritten."""
    pytest.importorskip("fcntl")
    seen = []

    def resume(folders, *others):
        for folder in folders:
            with pytest.raises(FileError, match=folder.name), locked_folder(folder):
                pass
        seen.append(folders)
        return original(folders, *others)

    original = checkpoint.resume
    monkeypatch.setattr(checkpoint, "resume", resume)
    train([TINY.replace(seed=seed) for seed in range(2)], tmp_path)
    assert len(seen) == 1
    with locked_folder(tmp_path / "seed=0"):  # given back
        pass


def test_a_folder_left_empty_is_removed_again(tmp_path):
    for keeps in (False, True):
        with locked_folder(tmp_path / "runs" / "mine"):
            if keeps:
                (tmp_path / "runs" / "mine" / "model").touch()
        assert (tmp_path / "runs").exists() == keeps


class TestCheckpoints:
    """Two generations; what is not whole is refused."""

    @pytest.fixture
    def folder(self, tmp_path):
        train(TINY, tmp_path)
        return tmp_path

    @pytest.mark.parametrize("damage", ["truncated", "edited", "foreign", "empty", "header"])
    def test_a_damaged_checkpoint_is_refused_and_the_previous_one_resumed(self, folder, damage):
        latest = folder / checkpoint.LATEST
        whole, content = final(folder), bytearray(latest.read_bytes())
        if damage == "truncated":
            content = content[:-10]
        elif damage == "edited":
            content[-5] ^= 1
        elif damage == "empty":
            content = bytearray()
        elif damage == "header":
            content = content.replace(b'\\"lr\\": 0.001', b'\\"lr\\": 0.002')
        else:
            content = bytearray((folder / "model.safetensors").read_bytes())
        assert content != latest.read_bytes()
        latest.write_bytes(content)
        with pytest.raises(FileError, match=checkpoint.LATEST):
            checkpoint.read(latest)
        (resumption,) = checkpoint.resume([folder], [TINY])
        assert resumption.step == 9 and len(resumption.refused) == 1
        train(TINY, folder)
        assert equal(final(folder), whole)

    def test_a_model_without_a_checkpoint_is_not_overwritten(self, folder):
        for name in (checkpoint.LATEST, checkpoint.PREVIOUS):
            (folder / name).unlink(missing_ok=True)
        kept = (folder / "model.safetensors").read_bytes()
        with pytest.raises(FileError, match="checkpoint"):
            train(TINY, folder)
        assert (folder / "model.safetensors").read_bytes() == kept

    def test_an_incomplete_manifest_is_rewritten(self, folder):
        (folder / "manifest.json").write_text('{"state": "finished"}')
        assert train(TINY, folder).steps == TINY.steps

    @pytest.mark.parametrize("lost", ["model.safetensors", "config.json", "manifest.json"])
    def test_a_lost_file_of_a_finished_run_is_rewritten(self, folder, lost):
        train(TINY, folder)
        kept = (folder / "model.safetensors").read_bytes()
        (folder / lost).unlink()
        run = train(TINY, folder)
        assert run.steps == TINY.steps and (folder / "model.safetensors").read_bytes() == kept

    def test_a_run_without_a_whole_checkpoint_does_not_start_over(self, folder):
        for name in (checkpoint.LATEST, checkpoint.PREVIOUS):
            (folder / name).write_bytes(b"nonsense")
        with pytest.raises(FileError, match=checkpoint.PREVIOUS):
            train(TINY, folder)

    @pytest.mark.parametrize("damaged", [lambda content: b"nonsense", lambda content: content[:-10]])
    def test_a_damaged_latest_checkpoint_does_not_replace_the_previous(self, folder, damaged):
        previous = checkpoint.read(folder / checkpoint.PREVIOUS)
        latest = folder / checkpoint.LATEST
        latest.write_bytes(damaged(latest.read_bytes()))
        checkpoint.write(folder, checkpoint.Checkpoint(13, TINY, previous.state))
        assert checkpoint.read(folder / checkpoint.PREVIOUS).step == 9

    def test_a_folder_in_place_of_the_latest_checkpoint_is_a_file_error(self, folder):
        latest = folder / checkpoint.LATEST
        latest.unlink()
        latest.mkdir()
        with pytest.raises(FileError, match=checkpoint.LATEST):
            train(TINY, folder)
        assert checkpoint.resume([folder], [TINY])[0].step == 9

    def test_a_checkpoint_holds_its_step_and_config(self, folder):
        stored = checkpoint.read(folder / checkpoint.LATEST)
        assert stored.step == 12 and stored.config == TINY
        assert json.dumps(stored.config.to_json())
