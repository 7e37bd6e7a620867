#!/bin/bash
#SBATCH --job-name=@NAME@
#SBATCH --ntasks=@SHARDS@
#SBATCH --cpus-per-task=@CPUS@
#SBATCH --distribution=cyclic
# The run directories come to lie in the directory from which this is submitted: all nodes must have it.
runs=@NAME@-$SLURM_JOB_ID
start=$(( $(date +%s) + @AHEAD@ ))
# A shard that fails leaves the others running.
srun --kill-on-bad-exit=0 --cpus-per-task=@CPUS@ @COMMAND@ --shard auto --start-at "$start" --run-dir "$runs" --quiet
loadgen merge --output "$runs/merged" "$runs"/*-shard-*
