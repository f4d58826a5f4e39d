#!/usr/bin/env bash
# Other programs' figures and ours, taking turns, so that both meet the same machine.
#
#   peers/run.sh FILE [ROUNDS]
#
# leaves FILE for `equipart bench --peers FILE`, and prints our figures beside the best of them after each round.
# Whatever is missing (PyTorch, MPI) is left out and said. See README.md beside this file.
set -euo pipefail

file=$(realpath -m "${1:?usage: peers/run.sh FILE [ROUNDS]}")
rounds=${2:-3}
python=${PYTHON:-python3}
cd "$(dirname "${BASH_SOURCE[0]}")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

note() { echo "run.sh: $*" >&2; }

torch=yes mpi=yes
"$python" -c 'import torch' 2>/dev/null || { torch=no && note "$python has no PyTorch; it is left out"; }
{ command -v mpicc && command -v mpirun; } >/dev/null || { mpi=no && note "there is no mpicc; MPI is left out"; }
[ "$torch$mpi" != nono ] || { note "there is nothing to compare with" && exit 2; }

cargo build --release --quiet -p equipart
[ $mpi = no ] || mpicc -O3 -o "$work/all_reduce" all_reduce.c
carried=$mpi target=../target/mpi
[ $mpi = no ] || cargo build --release --quiet -p equipart --features mpi --target-dir $target ||
    { carried=no && note "equipart does not build with MPI; its ranks over MPI are left out"; }
[ $torch = no ] || cc -shared -fPIC -o "$work/mkl.so" mkl.c

pytorch() { LD_PRELOAD="$work/mkl.so" "$python" pytorch.py "$1" >>"$file"; }
mpirun_of() { mpirun --oversubscribe -np "$1" "$work/all_reduce" >>"$file"; }
carried() { mpirun --oversubscribe -np 2 $target/release/equipart bench --turns 2 --peers "$file" --only "$1" 2>/dev/null; }
ours() { cargo run --release --quiet -p equipart -- bench --turns 2 --peers "$file" --only "$1" 2>/dev/null; }

: >"$file"
for round in $(seq "$rounds"); do
    echo "Round $round of $rounds"
    if [ $torch = yes ]; then
        pytorch products
        ours gemm,linear
        pytorch one
        ours forward_ms_tp1,train_step_ms_tp1,decode
        pytorch two
        pytorch gloo
        ours forward_ms_tp2,train_step_ms_tp2,train_step_ms_dp2
        pytorch pipeline
        ours pipeline_gpipe_ms,pipeline_1f1b_ms
        pytorch ring
        ours ring_attention
    fi
    if [ $mpi = yes ]; then
        mpirun_of 2
        mpirun_of 4
        ours all_reduce
        [ $carried = no ] || carried all_reduce_us,train_step_ms_tp2
    fi
done
note "the figures of others are in $file"
