"""Ranks: a shard as it is written, and as launchers number their processes."""

from __future__ import annotations

import pytest

from builders.loops import loop_over
from loadgen.settings import shard_settings
from loadgen.settings.shard_settings import Share

SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}
MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "8"}
JOB = {"JOB_COMPLETION_INDEX": "3"}


@loop_over(
    ("text", "environ", "share"),
    [
        ("0/1", {}, Share(0, 1)),
        ("3/8", {}, Share(3, 8)),
        ("2/8", SLURM, Share(2, 8)),  # what is written counts
        ("auto", SLURM, Share(3, 8)),
        ("auto", MPI, Share(3, 8)),
        ("auto", HYDRA, Share(3, 8)),
        ("auto", SLURM | HYDRA, Share(3, 8)),  # srun --mpi=pmi2
        ("auto", SLURM | MPI | JOB, Share(3, 8)),
        ("auto", JOB | {"PMI_RANK": "", "PMI_SIZE": ""} | SLURM, Share(3, 8)),
        ("auto/8", JOB, Share(3, 8)),
        ("auto/4", JOB, Share(3, 4)),
        ("auto/8", SLURM, Share(3, 8)),
    ],
)
def test_a_shard_is_read(text: str, environ: dict[str, str], share: Share) -> None:
    assert shard_settings.read_share(text, environ) == share


@loop_over(
    ("text", "environ", "message"),
    [
        ("", {}, "'' is not a shard: give I/N as 0/4 (the last is 3/4), auto, or auto/N"),
        ("3", {}, "'3' is not a shard"),
        ("-1/3", {}, "'-1/3' is not a shard"),
        ("a/3", {}, "'a/3' is not a shard"),
        ("1/3/5", {}, "'1/3/5' is not a shard"),
        ("\u0663/\u0665", {}, "is not a shard"),
        ("3/3", {}, "3/3: shards are counted from 0: the last of 3 is 2/3"),
        ("0/0", {}, "0/0: there are from 1 to 100000 shards"),
        ("0/999999", {}, "0/999999: there are from 1 to 100000 shards"),
        ("auto", {}, "no launcher has numbered this process (SLURM_PROCID, "),
        ("auto", {"SLURM_NTASKS": "8"}, "no launcher has numbered this process (SLURM_PROCID, "),
        ("auto", JOB, "JOB_COMPLETION_INDEX=3 does not say how many shards there are: give auto/N"),
        (
            "auto/3",
            JOB,
            "auto/3 with JOB_COMPLETION_INDEX=3: shards are counted from 0: the last of 3 is 2/3",
        ),
        ("auto/4", SLURM, "auto/4: SLURM_PROCID=3 of SLURM_NTASKS=8: give auto, or start 4 processes"),
        (
            "auto",
            SLURM | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8"},
            "SLURM_PROCID=3 of SLURM_NTASKS=8 and OMPI_COMM_WORLD_RANK=1 of OMPI_COMM_WORLD_SIZE=8 disagree",
        ),
        ("auto", SLURM | {"PMI_RANK": "3", "PMI_SIZE": "9"}, "disagree: give I/N"),
        ("auto", {"SLURM_PROCID": "x", "SLURM_NTASKS": "8"}, "SLURM_PROCID='x' is not a number: give I/N"),
        ("auto", {"SLURM_PROCID": "1", "SLURM_NTASKS": "-8"}, "SLURM_NTASKS='-8' is not a number: give I/N"),
        ("auto", {"SLURM_PROCID": "8", "SLURM_NTASKS": "8"}, "the last of 8 is 7/8"),
    ],
)
def test_what_is_no_shard_is_refused(text: str, environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=r"shard|give") as refused:
        shard_settings.read_share(text, environ)
    assert message in str(refused.value)
