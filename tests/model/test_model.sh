#!/bin/sh
# SPDX-License-Identifier: MIT
# tests/model/test_model.sh - run queue.pml through Spin: no error, and every planted fault found.
#
# Usage     test_model.sh [--long]     from the repository's root; --long adds three producers of
#                                      two jobs each (many minutes and up to 6 GiB of memory)
# Needs     spin and a C compiler; without spin nothing runs (exit 77).
# Output    build/model/; ends with "test_model: N passed, N failed, N skipped".
set -u

if ! command -v spin >/dev/null 2>&1; then
    echo "  skip: no spin (apt-get install spin)"
    echo "test_model: 0 passed, 0 failed, 1 skipped"
    exit 77
fi

model=$PWD/tests/model/queue.pml
work=build/model
passed=0
failed=0
mkdir -p "$work" && cd "$work" || exit 1

# Prints "clean", "found" or "broken: reason", then what Spin counted.
explore() {
    rm -rf run && mkdir run && cd run || exit 1
    cp "$model" .
    if ! spin -a "$@" queue.pml >log 2>&1 ||
        ! ${CC:-cc} -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=6000 -o pan pan.c >>log 2>&1; then
        echo "broken: the model does not build ($(tail -n 1 log))"
    else
        ./pan -m400000 -w22 >log 2>&1
        states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' log)
        if grep -q 'max search depth too small\|out of memory\|Warning: Search not completed' log &&
            ! grep -q 'errors: [1-9]' log; then
            echo "broken: not all states were seen"
        elif grep -q 'errors: 0' log; then
            echo "clean, $states states"
        else
            echo "found: $(sed -n 's/^pan:1: //p' log | head -n 1)"
        fi
    fi
    cd ..
}

# expect clean|found NAME FLAGS...
expect() {
    want=$1
    name=$2
    shift 2
    got=$(explore "$@")
    case $got in
    "$want"*)
        passed=$((passed + 1))
        echo "  pass $name ($got)"
        ;;
    *)
        failed=$((failed + 1))
        echo "  FAIL $name: wanted $want, got $got"
        ;;
    esac
}

for road in shared spsc; do
    flag=
    [ $road = spsc ] && flag=-DSPSC
    expect clean "$road, 2 producers of 4 jobs" $flag -DP=2 -DJ=4
    expect clean "$road, 2 producers of 3 jobs, 4 slots" $flag -DP=2 -DJ=3 -DCAP=4
    expect clean "$road, 3 producers of 1 job, 1 slot" $flag -DP=3 -DJ=1 -DCAP=1
    if [ "${1:-}" = --long ]; then
        expect clean "$road, 3 producers of 2 jobs" $flag -DP=3 -DJ=2
    fi
    faults="NO_PUBLISHER_FENCE STOP_DOES_NOT_RING LOOK_BEFORE_BEGIN SNAPSHOT_AFTER_LOOK
        ONE_WAKE_ONE_JOB ONE_TOO_MANY INDEX_BEFORE_SLOTS"
    case $road in
    shared) faults="$faults LOADS_SWAPPED NO_SECOND_READ PLACE_WITHOUT_CAS" ;;
    spsc) faults="$faults TAIL_BEFORE_SLOT" ;;
    esac
    for fault in $faults; do
        expect found "$road, fault $fault" $flag -DP=2 -DJ=3 -DFAULT_$fault
    done
done

echo "test_model: $passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
