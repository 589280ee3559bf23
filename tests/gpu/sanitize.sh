#!/bin/sh
# SPDX-License-Identifier: MIT
# tests/gpu/sanitize.sh - the CUDA operation suites under compute-sanitizer, case by case.
#
# Usage     [TOOLS="..."] [PROGRAMS="..."] [SECONDS_LEFT=300] [JOBS=...] sh tests/gpu/sanitize.sh
# Runs      a job for each tool, program and case, JOBS (all processors) at a time and the longest
#           first. Each has JOB_LIMIT seconds, and none goes on when SECONDS_LEFT are over.
# Light     the programs run with REN_TEST_LIGHT (table.h): 1, and init under initcheck.
# Filter    memcheck looks at every kernel. initcheck and synccheck look at ours alone, by their
#           names in the sources: libraries synchronise in ways that the tools do not follow.
#           racecheck fails inside itself when a filter leaves cuBLAS's kernels out (CUDA 13.0), so
#           it looks at all; races inside kernels whose names are those of a library's do not count
#           and are told of in a line.
# Left out  of racecheck: cases that put kernel after kernel of a library under it, for minutes, and
#           launch none of ours that other cases do not.
# Control   one more job leaves the inputs of an addition unwritten: initcheck, with the filter, has
#           to find that add_kernel reads them. Otherwise it looks at nothing and all is wrong.
# Output    a line for each job that was not clean and its log, what took longest, and a line for
#           each tool and program: cases, clean ones, errors that the tool reports, failed cases,
#           cases that ran out of time.
# Exit      0 all clean; 1 something was not, or did not end.
# Needs     the built programs and module of FLAVOUR=test; see the target test-gpu-build.
set -u

# Our kernels, with | between them.
kernels() {
    grep -ho '[a-z_]*_kernel(' libren/device/cuda/*.cu | tr -d '(' | sort -u | tr '\n' '|' |
        sed 's/|$//'
}

LIBRARIES='nvjet_|cutlass|cudnn|cublas|xmma_|sm[0-9]+_|splitK|winograd|fft'

# Races between threads of one kernel, in the log of racecheck: "library" or "other" for each.
races() {
    grep -hA 1 'Race reported' "$@" | sed -nE 's/.*Race reported .* at (.*)/\1/p' |
        awk -v libraries="$LIBRARIES" '{ print $0 ~ libraries ? "library" : "other" }'
}

# The number in a log's summary, for racecheck that of races that are no library's; nothing where
# there is no summary.
reported() {
    if grep -q '= RACECHECK SUMMARY' "$1"; then
        races "$1" | grep -c other
        return
    fi
    sed -nE 's/^=+ ERROR SUMMARY: ([0-9]+) error.*/\1/p' "$1" | tail -n 1
}

# One job: `tool program case verdict errors seconds` into its .result.
job() {
    log=$SANITIZE_DIR/$1.$2.$3.log
    limit=$((SANITIZE_UNTIL - $(date +%s)))
    [ "$limit" -lt "$SANITIZE_LIMIT" ] || limit=$SANITIZE_LIMIT
    tool=$1
    light=1
    set -- "$1" "$2" "$3" --error-exitcode 9
    case $1 in
    initcheck)
        # Copies of padding that nobody reads are no reads; the cases compare the values.
        set -- "$@" --check-api-memory-access no
        light=init
        ;;
    control)
        set -- "$@" --check-api-memory-access no
        tool=initcheck
        light=bare
        ;;
    esac
    case $tool in
    racecheck) set -- "$@" --print-limit 1000000 ;;
    memcheck) set -- "$@" --print-limit 20 ;;
    initcheck | synccheck)
        set -- "$@" --print-limit 20 --kernel-name "regex=^_Z[0-9]+($SANITIZE_KERNELS)(I|[0-9]).*"
        ;;
    esac
    name="$1 $2 $3"
    control=$1
    program=build/test/tests/gpu/test_cuda_$2
    only=$3
    shift 3
    at=$(date +%s)
    code=124
    : >"$log"
    if [ "$limit" -ge 3 ]; then
        REN_TEST_LIGHT=$light timeout -k 5 "$limit" "$SANITIZER" --tool "$tool" "$@" \
            "$program" "$only" >"$log" 2>&1 </dev/null
        code=$?
    fi
    errors=$(reported "$log")
    # The summary counts the program's own exit status, which the verdict tells of.
    if grep -q 'Target application returned an error' "$log" &&
        grep -q '= ERROR SUMMARY' "$log"; then
        errors=$((errors - 1))
    fi
    if [ "$control" = control ]; then
        verdict=broken
        errors=0
        ! grep -q 'Uninitialized.*read' "$log" || ! grep -q 'add_kernel' "$log" || verdict=clean
    elif [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
        verdict=unfinished
    elif [ "${errors:-0}" -ne 0 ]; then
        verdict=errors
    elif grep -qE ': 0 passed, 0 failed, [1-9][0-9]* skipped$' "$log"; then
        verdict=skipped
    elif ! grep -qE ': 1 passed, 0 failed, 0 skipped$' "$log"; then
        verdict=failed
    elif [ "$tool:$code" = racecheck:9 ] && [ "$errors" = 0 ]; then
        verdict=clean # but for a library's races
    elif [ "$code" -ne 0 ] || [ -z "$errors" ]; then
        verdict=broken
    else
        verdict=clean
    fi
    echo "$name $verdict ${errors:-0} $(($(date +%s) - at))" >"${log%.log}.result"
}

if [ "${1:-}" = --job ]; then
    shift
    job "$@"
    exit 0
fi

TOOLS=${TOOLS:-racecheck memcheck initcheck synccheck}
PROGRAMS=${PROGRAMS:-conv linear fused ops train}
JOBS=${JOBS:-$(nproc)}
SANITIZER=${SANITIZER:-$(command -v compute-sanitizer)}
SANITIZER=${SANITIZER:-/usr/local/cuda/bin/compute-sanitizer}
SANITIZE_DIR=build/sanitize
SANITIZE_LIMIT=${JOB_LIMIT:-120}
SANITIZE_UNTIL=$(($(date +%s) + ${SECONDS_LEFT:-300} - 8)) # jobs are killed and told of
SANITIZE_KERNELS=$(kernels)
REN_TEST_MODULE=${REN_TEST_MODULE:-$(pwd)/build/test/libren_cuda.so}
export SANITIZER SANITIZE_DIR SANITIZE_LIMIT SANITIZE_UNTIL SANITIZE_KERNELS REN_TEST_MODULE

# Begun first, the longest of them in front.
LONG="linear:test_linear_fused_tuned conv:test_conv_every_dtype conv:test_conv_tuned_same_values
    linear:test_linear_fused_deterministic linear:test_linear_fused_free
    conv:test_conv_fused_relu_as_separate fused:test_batch_norm_gradient_every_dtype
    fused:test_batch_norm_every_dtype fused:test_pool_every_dtype
    fused:test_activation_with_bias_gradient ops:test_linear_random_shapes
    train:test_optimizers_follow_reference"

# Not under racecheck.
MANY="conv:test_conv_fused_relu_as_separate conv:test_conv_tuned_same_values
    linear:test_linear_fused_tuned"

rm -rf "$SANITIZE_DIR"
mkdir -p "$SANITIZE_DIR"
plan=$SANITIZE_DIR/plan
for program in $PROGRAMS; do
    sed -nE "s/^    \{\"(test_[a-z0-9_]+)\".*/$program:\1/p" "tests/gpu/test_cuda_$program.c"
done >"$SANITIZE_DIR/cases"
for item in $LONG; do
    grep -x "$item" "$SANITIZE_DIR/cases"
done >"$SANITIZE_DIR/order"
awk 'FNR == NR { known[$0] = 1; next } !($0 in known)' "$SANITIZE_DIR/order" \
    "$SANITIZE_DIR/cases" >"$SANITIZE_DIR/rest"
cat "$SANITIZE_DIR/rest" >>"$SANITIZE_DIR/order"
{
    while IFS=: read -r program name; do
        for tool in $TOOLS; do
            case $tool:\ $MANY\  in
            racecheck:*[[:space:]]"$program:$name"[[:space:]]*) ;;
            *) echo "$tool $program $name" ;;
            esac
        done
    done <"$SANITIZE_DIR/order"
    echo "control ops test_add_and_in_place"
} >"$plan"

xargs -P "$JOBS" -n 3 sh "$0" --job <"$plan"

results=$SANITIZE_DIR/results
cat "$SANITIZE_DIR"/*.result >"$results"
grep -v ' clean ' "$results" | while read -r tool program name verdict errors seconds; do
    echo "== $tool $program $name: $verdict, $errors errors, $seconds s"
    head -n 120 "$SANITIZE_DIR/$tool.$program.$name.log"
done
echo "== longest"
sort -k6 -rn "$results" | head -n 15
grep -h 'operations run' "$SANITIZE_DIR"/*.log | awk '{ n += $1; l += $4 }
    END { printf "%d operations run, %d launches, under all tools\n", n, l }'
echo "racecheck: $(races "$SANITIZE_DIR"/racecheck.*.log | grep -c library) races inside" \
    "kernels of cuBLAS and cuDNN, not counted"
awk -v planned="$(wc -l <"$plan")" '
    { of = $1 " " $2; cases[of]++; errors[of] += $5; word[of, $4]++; jobs++
      time[of] += $6; if ($4 != "clean") wrong = 1 }
    END {
        for (of in cases) {
            printf "sanitizer: %s: %d cases, %d clean, %d errors, %d failed, %d unfinished, " \
                "%d skipped, %d broken, %d s\n", of, cases[of], word[of, "clean"], errors[of],
                word[of, "failed"], word[of, "unfinished"], word[of, "skipped"],
                word[of, "broken"], time[of] | "sort"
        }
        close("sort")
        if (jobs != planned) wrong = 1
        printf "sanitizer: %d of %d jobs ended, %s\n", jobs, planned, wrong ? "NOT CLEAN" : "clean"
        exit wrong
    }' "$results"
