#!/bin/sh
# SPDX-License-Identifier: MIT
# tests/abi/test_header.sh - ren.h compiles without a warning in every promised language.
#
# Proves    for C99, C11, C17 and C++11, 14, 17, 20, with gcc and clang: the header stands alone,
#           its inline functions compile under the strictest warnings, two translation units that
#           include it link with each other, and a C++ unit sees the C names.
# Fails     on a declaration that one of the languages lacks, an implicit conversion in an inline
#           function, a missing extern "C", or an inline function without `static`.
set -u
. tests/support/cases.sh

warnings='-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef -Werror'

# A unit that calls every *_default() of the header, under a name of its own.
defaults=$(grep -oE '\bren_[a-z0-9_]+_default\(void\)' host_api/ren.h | sed 's/(void)//')
defined=$(grep -oE '^REN_DEFINE_DEFAULT_\(ren_[a-z0-9_]+\)' host_api/ren.h |
    sed -e 's/.*(//' -e 's/)/_default/')
unit() {
    echo '#include "ren.h"'
    echo '#include "ren.h"'
    echo "uint32_t $1(void);"
    echo "uint32_t $1(void)"
    echo '{'
    echo '    uint32_t sum = ren_version();'
    for function in $defaults $defined; do
        echo "    sum += $function().struct_size;"
    done
    echo '    return sum;'
    echo '}'
}

unit first >"$scratch/first.c"
unit second >"$scratch/second.c"
cat >>"$scratch/second.c" <<'END'
uint32_t first(void);
int main(void)
{
    return first() == second() && first() > 0 ? 0 : 1;
}
END
cp "$scratch/first.c" "$scratch/first.cc"
cp "$scratch/second.c" "$scratch/second.cc"

# The library's side is C in every case, so a C++ unit links only if it asks for the C name.
cat >"$scratch/library.c" <<'END'
#include "ren.h"
uint32_t ren_version(void)
{
    return 0;
}
END
${CC:-gcc} -Ihost_api -c "$scratch/library.c" -o "$scratch/library.o"
case_is "the C side of the link compiles" $?

count=$(grep -c struct_size "$scratch/first.c")
[ "$count" -ge 20 ]
case_is "every _default function is called ($count)" $?

# compiles COMPILER STANDARD SUFFIX
compiles() {
    if ! command -v "$1" >/dev/null 2>&1; then
        case_skip "$1 -std=$2" "no $1 here"
        return
    fi
    # shellcheck disable=SC2086
    $1 -std=$2 $warnings -O0 -Ihost_api "$scratch/first.$3" "$scratch/second.$3" \
        "$scratch/library.o" -o "$scratch/program" && "$scratch/program"
    case_is "$1 -std=$2" $?
}

for standard in c99 c11 c17; do
    compiles gcc $standard c
    compiles clang $standard c
done
for standard in c++11 c++14 c++17 c++20; do
    compiles g++ $standard cc
    compiles clang++ $standard cc
done
case_finish abi/test_header
