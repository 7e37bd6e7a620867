"""Schedulers: the same shards as one step of a Slurm job, or by mpirun."""

from __future__ import annotations

from loadgen.fleet.launch_plan import LaunchPlan

_AUTO = ("--shard auto", '--start-at "$start"')


def slurm(plan: LaunchPlan, name: str, start_in_s: int) -> str:
    """A script for sbatch: the start is counted from when the job begins, however long it waited."""
    command = plan.line(*_AUTO, '--run-dir "$runs"', "--quiet")
    return f"""#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --ntasks={plan.shards}
#SBATCH --cpus-per-task={plan.cpus}
#SBATCH --distribution=cyclic
# The run directories come to lie in the directory from which this is submitted: all nodes must have it.
runs={name}-$SLURM_JOB_ID
start=$(( $(date +%s) + {start_in_s} ))
# A shard that fails leaves the others running.
srun --kill-on-bad-exit=0 --cpus-per-task={plan.cpus} {command}
loadgen merge --output "$runs/merged" "$runs"/*-shard-*
"""


def mpi(plan: LaunchPlan, name: str, start_in_s: int) -> str:
    """Two lines for a shell, or for a script: the ranks of mpirun are the shards."""
    command = plan.line(*_AUTO, '--run-dir "$runs"', "--quiet")
    return f"""start=$(( $(date +%s) + {start_in_s} )); runs={name}-$start
mpirun -n {plan.shards} {command}
loadgen merge --output "$runs/merged" "$runs"/*-shard-*
"""
