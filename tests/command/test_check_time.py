"""tools/check_time.py: what it finds, and what it leaves alone."""

import importlib.util
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "tools" / "check_time.py"
SPEC = importlib.util.spec_from_file_location("check_time", SOURCE)
check_time = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_time)


@pytest.mark.parametrize(
    "line",
    [
        "#include <thread>",
        "# include <mutex>",
        "#include <condition_variable>",
        "#include <ctime>",
        "std::thread worker(f);",
        "std::jthread worker(f);",
        "auto later = std::async(f);",
        "std::this_thread::yield();",
        "std::mutex mutex_;",
        "const std::lock_guard lock(mutex_);",
        "std::condition_variable_any wake;",
        "sleep(1);",
        "::usleep(5);",
        "std::this_thread::sleep_for(1s);",
        "auto now = std::chrono::system_clock::now();",
        "using Clock = std::chrono::steady_clock;",
        "const SystemClock clock;",
        "time_t now = time(nullptr);",
        "now = std::time(nullptr);",
        "clock_gettime(CLOCK_REALTIME, &now);",
        "std::random_device device;",
        "int x = rand();",
    ],
)
def test_found(line: str) -> None:
    code = f"int a;\n{line}\nint b;\n"
    assert {number for number, _ in check_time.complaints_about(code)} == {2}


@pytest.mark.parametrize(
    "line",
    [
        "// never calls sleep() or std::chrono::system_clock::now()",
        "/* std::mutex\n   time(nullptr) */",
        'return Error("the time (by the store) is std::mutex");',
        "#include <chrono>",
        "record.time = TimeText(seconds);",
        "lifetime(x); clock.Wall(); store.Now(); fields.Time(key); object.time(x);",
        "std::chrono::seconds grace;",
        "std::atomic<int> count;",
        "timeouts.select;",
    ],
)
def test_left_alone(line: str) -> None:
    assert check_time.complaints_about(f"int a;\n{line}\n") == []


def test_the_folders_keep_the_rule() -> None:
    assert check_time.complaints() == []
