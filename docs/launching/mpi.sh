start=$(( $(date +%s) + @AHEAD@ )); runs=@NAME@-$start
mpirun -n @SHARDS@ @COMMAND@ --shard auto --start-at "$start" --run-dir "$runs" --quiet
loadgen merge --output "$runs/merged" "$runs"/*-shard-*
