#!/bin/sh
# SPDX-License-Identifier: MIT
# tests/abi/test_demo.sh - the demo's command line and its result.
#
# Proves    it trains to the accuracy it promises, on one stream and on five with the same result,
#           saves weights that load again, and writes a trace; wrong usage, missing or damaged data
#           and a file that cannot be written each give one clear message and the right exit status.
# Fails     when an option is not checked, an error is swallowed, or the demo learns worse.
set -u
. tests/support/cases.sh

CC=${CC:-gcc}
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u FLAVOUR -u T CC="$CC" make --no-print-directory \
    FLAVOUR=release demo-build >"$scratch/build.log" 2>&1
status=$?
[ "$status" -eq 0 ] || cat "$scratch/build.log"
case_is "make demo-build" $status

# demo ARGUMENTS...: its exit status in $code, what it says in $scratch/out and $scratch/err.
demo() {
    build/release/demos/01_digits/01_digits "$@" >"$scratch/out" 2>"$scratch/err"
    code=$?
}

# says NAME STATUS TEXT: the last run ended so, with that text on stderr.
says() {
    [ "$code" -eq "$2" ] && grep -qF -- "$3" "$scratch/err"
    status=$?
    [ "$status" -eq 0 ] || { echo "exit $code"; cat "$scratch/out" "$scratch/err"; }
    case_is "$1" $status
}

demo --help
[ "$code" -eq 0 ] && grep -q '^usage:' "$scratch/out" && [ ! -s "$scratch/err" ]
case_is "--help" $?

demo --bogus
says "an unknown option" 2 "unknown option --bogus"
demo extra
says "an argument too many" 2 "unexpected 'extra'"
demo --steps
says "an option without its value" 2 "no value after --steps"
for wrong in 0 -1 x 1.5 '' 99999999999999999999; do
    demo --steps "$wrong"
    says "--steps '$wrong'" 2 "--steps cannot be '$wrong'"
done
demo --streams 6
says "--streams 6" 2 "--streams cannot be '6'"
demo --device tpu
says "--device tpu" 2 "--device cannot be 'tpu'"

demo --data "$scratch/none"
says "data that are not there" 1 "cannot read digits-images-idx3-ubyte"
mkdir "$scratch/bad"
cp demos/data/digits-labels-idx1-ubyte "$scratch/bad"
head -c 5000 demos/data/digits-images-idx3-ubyte >"$scratch/bad/digits-images-idx3-ubyte"
demo --data "$scratch/bad"
says "data cut short" 1 "are not 8 x 8 digits in IDX format"

demo --steps 1500 --out "$scratch/five.safetensors" --trace "$scratch/trace.json"
[ "$code" -eq 0 ] && grep -q '^loaded .* the same$' "$scratch/out" && [ -s "$scratch/trace.json" ]
status=$?
[ "$status" -eq 0 ] || cat "$scratch/out" "$scratch/err"
case_is "it learns, saves, loads and traces" $status

demo --steps 1500 --streams 1 --out "$scratch/one.safetensors"
[ "$code" -eq 0 ] && cmp "$scratch/five.safetensors" "$scratch/one.safetensors"
case_is "one stream gives the same weights as five" $?

demo --steps 3 --out "$scratch/few.safetensors"
grep -q "accuracy  [0-9.]*% of" "$scratch/out" && [ "$code" -eq 0 ]
case_is "too few steps are not judged" $?
demo --steps 3 --out "$scratch/none/x"
says "a file that cannot be made" 1 "cannot write"
demo --steps 3 --trace "$scratch/none/x"
says "a trace that cannot be made" 1 "cannot open the trace file"
case_finish abi/test_demo
