"""Ranks: a shard as it is written, and as launchers number their processes."""

from __future__ import annotations

import pytest

from builders.loops import loop_over, read_tables
from loadgen.settings import shard_settings
from loadgen.settings.shard_settings import Share

TABLES = read_tables("shard_settings")

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


@loop_over(("text", "environ", "message"), TABLES["no shards"])
def test_what_is_no_shard_is_refused(text: str, environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=r"shard|give") as refused:
        shard_settings.read_share(text, environ)
    assert message in str(refused.value)
