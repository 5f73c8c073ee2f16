"""The settings of engines come from the table that the command and the package share."""

import dataclasses

import pytest
import weightwire as ww
from weightwire import _core
from weightwire.integrations._settings import EngineSettings, engine_settings


def settings(**variables):
    names = {f"WEIGHTWIRE_{name}": text for name, text in variables.items()}
    return EngineSettings.from_environment({"WEIGHTWIRE_RUN": "run", **names})


def test_each_setting_of_engines_has_a_field_and_a_variable():
    assert sorted(row["python_name"] for row in engine_settings()) == sorted(
        field.name for field in dataclasses.fields(EngineSettings)
    )
    assert all(row["environment"] == f"WEIGHTWIRE_{row['python_name'].upper()}" for row in engine_settings())


def test_defaults_are_those_of_the_table():
    assert settings() == EngineSettings(
        run="run",
        mirror=None,
        every_version=False,
        max_lag=0,
        min_update_interval=0.0,
        poll_interval=_core.POLL_SECONDS,
        verify="full",
        verify_interval=60.0,
        pin=None,
        name="",
        lease=True,
        threads=None,
        max_bytes_per_second=None,
    )
    assert settings(MAX_LAG="", NAME="", LEASE="") == settings()


def test_values_are_written_as_for_the_command():
    assert settings(POLL_INTERVAL="50ms").poll_interval == 0.05
    assert settings(MIN_UPDATE_INTERVAL="1.5m").min_update_interval == 90.0
    assert settings(VERIFY_INTERVAL="0").verify_interval == 0.0
    assert settings(VERIFY="commit").verify == "commit"
    assert settings(LEASE="no", EVERY_VERSION="1").every_version and not settings(LEASE="no").lease
    assert settings(PIN="0").pin == 0
    assert settings(MAX_BYTES_PER_SECOND="10MiB").max_bytes_per_second == 10 << 20


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("POLL_INTERVAL", "0s", "must be above 0"),
        ("MIN_UPDATE_INTERVAL", "soon", "soon"),
        ("MAX_LAG", "two", "is 'two'; it must be a whole number"),
        ("PIN", "-1", "whole number"),
        ("THREADS", "0", "must be above 0"),
        ("VERIFY", "some", "one of: full, commit"),
        ("LEASE", "perhaps", "perhaps"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(name, text, why):
    with pytest.raises(ww.InvalidArgumentError, match=f"^WEIGHTWIRE_{name}.*{why}"):
        settings(**{name: text})


def test_every_version_excludes_a_lag():
    with pytest.raises(ww.InvalidArgumentError, match=r"WEIGHTWIRE_EVERY_VERSION.*WEIGHTWIRE_MAX_LAG"):
        settings(EVERY_VERSION="1", MAX_LAG="1")
    assert settings(EVERY_VERSION="1", MAX_LAG="0").every_version
