"""A Jetson's files become readings, no rail is counted twice, and what cannot be read is named."""

from __future__ import annotations

from pathlib import Path

from builders.loops import loop_over, loop_over_named, read_tables
from builders.recorded_sensors import DATA, tree
from loadgen.host.jetson import Board, find_board

TABLES = read_tables("jetson")


def recorded(root: Path, name: str) -> Board:
    found = find_board(tree(root, (DATA / f"{name}.txt").read_text("utf-8")))
    assert isinstance(found, Board)
    return found


@loop_over_named(("name", "total", "under"), TABLES["rails"])
def test_the_total_counts_each_rail_once(
    tmp_path: Path, name: str, total: dict[str, float], under: dict[str, float]
) -> None:
    values = recorded(tmp_path, name).read([]).values
    found = {(what, where): round(value, 3) for (what, where), value in values.items() if what.endswith("_w")}
    assert found == {
        **{("board_w", rail): watts for rail, watts in total.items()},
        **{("rail_w", rail): watts for rail, watts in under.items()},
    }


def test_thor_without_its_board_s_monitor_sums_the_module_s_rails(tmp_path: Path) -> None:
    listing = (DATA / "agx_thor.txt").read_text("utf-8")
    found = Board(tree(tmp_path, "\n".join(x for x in listing.splitlines() if "/hwmon4/" not in x)))
    assert found.total == ["VDD_CPU_SOC_MSS", "VDD_GPU", "VIN_SYS_5V0"]


def test_thor_tells_heat_clocks_and_throttling_and_what_it_does_not_tell(tmp_path: Path) -> None:
    reading = recorded(tmp_path, "agx_thor").read([])
    levels = {key: value for key, value in reading.values.items() if not key[0].endswith("_w")}
    assert levels == {
        ("temperature_c", "tj-thermal"): 55.1,
        ("sm_mhz", "gpu-gpc-0"): 1575,
        ("memory_mhz", "bwmgr"): 4266,
    }
    assert reading.held_back == (("gpu", "throttle alert"),)
    assert reading.missing == ("the board does not report temperature gpu-thermal: No data available",)


def test_orin_tells_the_gpu_s_own_heat_and_clock(tmp_path: Path) -> None:
    reading = recorded(tmp_path, "agx_orin").read([])
    assert reading.values["temperature_c", "gpu-thermal"] == 69.125
    assert reading.values["sm_mhz", "17000000.gpu"] == 407
    assert (reading.held_back, reading.missing) == ((), ())


@loop_over(("name", "facts"), TABLES["facts"])
def test_facts_name_the_board_its_mode_and_its_total(
    tmp_path: Path, name: str, facts: dict[str, str]
) -> None:
    assert recorded(tmp_path, name).facts() == facts


def test_a_monitor_that_stops_to_answer_is_named(tmp_path: Path) -> None:
    found = recorded(tmp_path, "agx_thor")
    (tmp_path / "sys/class/hwmon/hwmon4/power1_input").unlink()
    (tmp_path / "sys/class/hwmon/hwmon5/curr1_input").write_text("broken\n", "utf-8")
    reading = found.read([])
    assert ("board_w", "VIN") not in reading.values
    assert reading.missing[0] == "the board does not report rail VIN: No such file or directory"
    assert reading.missing[1].startswith("the board does not report rail VDD_GPU: invalid literal")


@loop_over_named(
    ("listing", "missing"),
    {
        "no monitor": (
            "sys/class/devfreq/17000000.gpu/cur_freq = 1",
            "the board does not report its power: there is no INA monitor under /sys/class/hwmon",
        ),
        "a monitor without a label": (
            "sys/class/hwmon/hwmon0/name = ina226\nsys/class/hwmon/hwmon0/power1_input = 5000000",
            "the board does not report its total power: its monitors do not name their rails",
        ),
    },
)
def test_without_a_known_rail_there_is_no_total(tmp_path: Path, listing: str, missing: str) -> None:
    reading = Board(tree(tmp_path, listing)).read([])
    assert not any(what == "board_w" for what, _ in reading.values)
    assert reading.missing == (missing,)


@loop_over_named(
    ("listing", "found"),
    {
        "another board": ("proc/device-tree/model = Raspberry Pi 5", None),
        "a server": ("", None),
        "a container without /sys": (
            "proc/device-tree/model = NVIDIA Jetson Nano",
            ("NVIDIA Jetson Nano shows no sensor under /sys",),
        ),
    },
)
def test_another_machine_has_no_board(tmp_path: Path, listing: str, found: tuple[str] | None) -> None:
    board = find_board(tree(tmp_path, listing))
    assert (None if board is None else board.missing) == found
