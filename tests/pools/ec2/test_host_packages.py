"""Settings of this machine's pip, and the paths that they name, are passed to the pip that builds the root."""

from __future__ import annotations

from pathlib import Path

from pools.ec2.root import debian_mirror, pip_settings, read_pip_settings


def test_variables_win_over_files_and_what_they_name_is_found(tmp_path: Path) -> None:
    wheels, index, certificate = tmp_path / "wheels", tmp_path / "mirror" / "simple", tmp_path / "ca.pem"
    wheels.mkdir()
    index.mkdir(parents=True)
    certificate.touch()
    settings = read_pip_settings(
        f"global.cert='{certificate}'\n"
        f"global.find-links='/nowhere/else'\n"
        f"global.extra-index-url='file://{index} https://example.org/simple'\n"
        "wheel.cache-dir='/not/for/install'\n"
        f":env:.find-links='{wheels}'\n"
        ":env:.default-timeout='180'\n"
    )
    assert settings.variables == {
        "PIP_CERT": str(certificate),
        "PIP_FIND_LINKS": str(wheels),
        "PIP_EXTRA_INDEX_URL": f"file://{index} https://example.org/simple",
        "PIP_DEFAULT_TIMEOUT": "180",
    }
    assert settings.paths == tuple(sorted([certificate, tmp_path / "mirror", wheels])), (
        "an index's pages point beside it"
    )


def test_several_values_on_lines_of_their_own_are_words() -> None:
    assert read_pip_settings("global.find-links='/a\\n/b'\n").variables == {"PIP_FIND_LINKS": "/a /b"}


def test_a_machine_without_settings_has_none() -> None:
    settings = read_pip_settings("")
    assert (settings.variables, settings.paths) == ({}, ())


def test_this_machines_own_are_read() -> None:
    assert all(name.startswith("PIP_") for name in pip_settings().variables)
    assert "://" in debian_mirror() or debian_mirror().startswith("file:")
