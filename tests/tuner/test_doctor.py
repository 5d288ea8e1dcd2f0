"""The doctor says what is there, what is missing and what to do about it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rubin_tune.tuner import doctor
from rubin_tune.tuner.doctor import Finding, findings


def finding(what: str) -> Finding:
    (found,) = [f for f in findings() if f.what == what]
    return found


def test_every_target_is_told_and_what_is_missing_has_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        doctor, "supported_targets", lambda: {90: "", 107: "triton 3.6.0 does not know sm_107"}
    )
    assert finding("target sm_90").ok
    missing = finding("target sm_107")
    assert (missing.ok, missing.detail) == (False, "triton 3.6.0 does not know sm_107")
    assert "triton>=3.9" in missing.advice


def test_what_no_sweep_can_do_without_is_marked_and_the_rest_is_not() -> None:
    needed = {f.what for f in findings() if f.needed}
    assert needed == {"torch", "triton", "database folder", "cache folder"}


def test_a_missing_package_is_no_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", version)
    for what in ("torch", "triton", "vllm", "psycopg"):
        found = finding(what)
        assert not found.ok
        assert found.advice.startswith("pip install")


def test_a_folder_that_cannot_be_written_is_no(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A file where the folder would be: nobody, not even root, can write under it.
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(doctor, "default_cache_dir", lambda: blocked / "rubin-tune")
    found = finding("cache folder")
    assert not found.ok
    assert "XDG_CACHE_HOME" in found.advice


@pytest.mark.parametrize(("said", "ok"), [("0", True), ("93", False), ("[N/A]", True)])
def test_a_busy_gpu_is_no(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, ok: bool
) -> None:
    gpu = SimpleNamespace(title="H200", arch=90, sms=132)
    monkeypatch.setattr(doctor, "detect_gpu", lambda: gpu)
    query = tmp_path / "nvidia-smi"
    query.write_text(f"#!/bin/sh\necho '{said}'\n")
    query.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = finding("GPU")
    assert found.ok is ok
    assert "H200 (sm_90, 132 SMs)" in found.detail
    assert bool(found.advice) is not ok
