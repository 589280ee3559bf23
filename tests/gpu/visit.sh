#!/bin/sh
# SPDX-License-Identifier: MIT
# tests/gpu/visit.sh - everything that needs a GPU, in one go on a machine that has one.
#
# Usage     OUT=<folder> [COMMIT=<id>] [PARTS="..."] [SECONDS_LEFT=540] sh tests/gpu/visit.sh
# Parts     info build test bench demo memcheck racecheck initcheck synccheck; all without PARTS
#           The four last are tools of compute-sanitizer and share one log; sanitize.sh runs them,
#           with REN_TEST_LIGHT set (table.h), and builds no more than they need without `build`.
# Output    one log for each part, and the benchmark's rows, in $OUT; a summary last.
# Exit      0 all parts ran and none failed; 1 otherwise.
# Time      every part has a limit, and none starts when too little is left of SECONDS_LEFT.
# Needs     build/stage (make stage) where the machine reaches no registry.
set -u

OUT=${OUT:-build/visit}
PARTS=${PARTS:-info build test bench demo memcheck racecheck initcheck synccheck}
SECONDS_LEFT=${SECONDS_LEFT:-540}
ARCHS=${ARCHS:-90}
mkdir -p "$OUT"
started=$(date +%s)
summary=
wrong=0

left() {
    echo $((SECONDS_LEFT - ($(date +%s) - started)))
}

# part NAME LIMIT COMMAND...: run it into $OUT/NAME.log.
part() {
    name=$1
    limit=$2
    shift 2
    case " $PARTS " in
    *" $name "*) ;;
    *) return 0 ;;
    esac
    have=$(left)
    if [ "$have" -lt 15 ]; then
        wrong=1
        summary="$summary
$name: left out, no time"
        return 0
    fi
    [ "$limit" -lt "$have" ] || limit=$((have - 5))
    at=$(date +%s)
    timeout -k 5 "$limit" sh -c "$*" >"$OUT/$name.log" 2>&1
    code=$?
    [ "$code" -eq 0 ] || wrong=1
    summary="$summary
$name: exit $code after $(($(date +%s) - at)) s: $(tail -n 1 "$OUT/$name.log" | cut -c1-150)"
}

if [ ! -d build/sysroot ] && [ -d build/stage ] && [ ! -e /usr/include/ck_ring.h ]; then
    sh tests/gpu/stage.sh unpack
fi
for dir in build/sysroot/usr/lib/*-linux-gnu; do
    [ -d "$dir" ] && LD_LIBRARY_PATH=$(pwd)/$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH

driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
machine=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 |
    tr 'A-Z ' 'a-z-')
jobs=$(nproc)
make="make -k -j$jobs CUDA_ARCHS=\"$ARCHS\" EXTRA_CFLAGS=-Wno-error"
export REN_TEST_MODULE="$(pwd)/build/test/libren_cuda.so"

# The programs about single operations under those tools of the sanitizer that PARTS has.
sanitize() {
    tools=
    for tool in racecheck memcheck initcheck synccheck; do
        case " $PARTS " in
        *" $tool "*) tools="$tools $tool" ;;
        esac
    done
    [ -n "$tools" ] || return 0
    case " $PARTS " in
    *" build "*) ;;
    *)
        programs=build/test/libren_cuda.so
        for program in ops train conv linear fused; do
            programs="$programs build/test/tests/gpu/test_cuda_$program"
        done
        PARTS="$PARTS programs"
        part programs 150 "$make FLAVOUR=test $programs"
        ;;
    esac
    PARTS="$PARTS sanitizer"
    limit=$(left)
    [ "$limit" -lt 260 ] || limit=260
    part sanitizer "$limit" "TOOLS='$tools' SECONDS_LEFT=$((limit - 15)) sh tests/gpu/sanitize.sh"
}

part info 20 "nvidia-smi; nvcc --version || /usr/local/cuda/bin/nvcc --version; gcc --version;
    uname -a; cat /etc/os-release; ls -l /usr/include/cudnn*.h /usr/local/cuda/lib64/libcudnn*;
    ls build/sysroot/usr/lib/*"
part build 200 "$make FLAVOUR=test test-gpu-build;
    $make FLAVOUR=release all bench-gpu-build demo-build DEVICE=cuda; ls -l build/*/libren_cuda.so"
if [ -f "$OUT/info.log" ] && [ -f "$OUT/build.log" ]; then # few files come back
    cat "$OUT/build.log" >>"$OUT/info.log"
    mv "$OUT/info.log" "$OUT/build.log"
fi
part test 230 "TEST_JOBS=4 TEST_TIMEOUT=${TEST_TIMEOUT:-75} $make test-gpu"
part bench 60 "build/release/tests/gpu/bench_device --module build/release/libren_cuda.so \
    --machine ${machine:-gpu} --driver '$driver' --commit ${COMMIT:-unknown} --dir $OUT"
part demo 60 "make EXTRA_CFLAGS=-Wno-error CUDA_ARCHS=\"$ARCHS\" FLAVOUR=release demo-run \
    DEVICE=cuda"
sanitize

printf '%s\n' "$summary" | tee "$OUT/summary.log"
grep -hE 'passed, [0-9]+ failed' "$OUT/test.log" 2>/dev/null | tail -n 40
grep -hE '^ *(FAIL|skip) ' "$OUT/test.log" 2>/dev/null | sort | uniq -c | head -n 40
grep -h '^sanitizer: ' "$OUT/sanitizer.log" 2>/dev/null
exit "$wrong"
