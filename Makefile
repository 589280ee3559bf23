# SPDX-License-Identifier: MIT
# Makefile - every command a person needs; `make help` lists them.
#
# Shape     All outputs lie under build/. One set of rules builds every flavour, each into
#           build/<flavour>/:
#             release  libren.a, libren.so.0, demos, benchmarks
#             test     libren_test.a (the library with -DREN_TESTING=1, and tests/support) and the
#                      test programs
#             asan, ubsan, tsan  as test, under a sanitizer
#           A target that needs a flavour calls make again with FLAVOUR=<flavour>.
# Sources   by wildcard: a new .c file in a listed folder is picked up by itself.
# Rebuild   header dependencies come from the compiler (-MMD -MP); a change of compiler or flags
#           rebuilds the flavour (build/<flavour>/flags).
# Machine   a fresh Debian or Ubuntu needs git, make and apt only: parsing this file starts no
#           compiler, and `demo` and `test` install what is missing (see tests/tools/deps).
#
# Variables to set on the command line
#   CC, CXX, EXTRA_CFLAGS, EXTRA_LDFLAGS   tools and further flags
#   PREFIX, DESTDIR, LIBDIR                install paths (/usr/local, none, $(PREFIX)/lib)
#   ARGS, DEVICE                           make demo: arguments, and cpu or cuda
#   CUDA                                   0 leaves the CUDA module out of `make all`
#   T                                      tests and benchmarks: only programs whose path has T
#   TEST_TIMEOUT                           seconds that one test program may take
#   V=1                                    print whole commands
#
# Variables for libren/device/cuda/module.mk, which is included below when it exists
#   FLAVOUR, B                   the flavour of this run of make and its folder, build/$(FLAVOUR)
#   CC, CXX, CPPFLAGS_ALL, CFLAGS_ALL, LDFLAGS_ALL, LIBS   what this flavour compiles and links with
#   LIB_OBJECTS, TEST_OBJECTS    objects of the library, and of tests/support (test flavours)
#   LIBREN_A, LIBREN_SO, LIBREN_TEST_A     the libraries of this flavour
#   SYSROOT                      build/sysroot if it exists, else empty
#   SUBMAKE                      starts make for another flavour: $(SUBMAKE) FLAVOUR=test <target>
#   run-tests                    tests/tools/run-tests FLAVOUR PROGRAM... runs them, prints totals

.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := all

ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin CXX),default)
CXX := g++
endif
AR ?= ar

VERSION   := 0.1.0
SOVERSION := 0
PREFIX    ?= /usr/local
LIBDIR    ?= $(PREFIX)/lib
FLAVOUR   ?= release
B         := build/$(FLAVOUR)

# A folder with staged headers and libraries, laid out as in a Debian root, is preferred.
SYSROOT := $(wildcard build/sysroot)

# ---------------------------------------------------------------- flags

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror

CPPFLAGS_ALL := -D_GNU_SOURCE -I.
CFLAGS_ALL    = -std=c11 -O2 -g -fPIC -pthread -fvisibility=hidden $(WARNINGS) $(FLAVOUR_CFLAGS) \
                $(EXTRA_CFLAGS)
CXXFLAGS_ALL  = -std=c++17 -O2 -g -fPIC -pthread -Wall -Wextra $(FLAVOUR_CFLAGS) $(EXTRA_CFLAGS)
LDFLAGS_ALL   = -pthread $(FLAVOUR_LDFLAGS) $(EXTRA_LDFLAGS)

# The CPU device refers to omp_set_num_threads weakly, and a weak reference alone does not keep a
# library that is linked as needed; so libgomp, which oneDNN brings along, is named outright.
LIBS := -Wl,--as-needed -lck -ldnnl -lyajl -ldl -lm \
        -Wl,--push-state,--no-as-needed -lgomp -Wl,--pop-state

ifneq ($(SYSROOT),)
CPPFLAGS_ALL    += -isystem $(SYSROOT)/usr/include
SYSROOT_LIBS    := $(wildcard $(SYSROOT)/usr/lib/*-linux-gnu) $(SYSROOT)/usr/lib
FLAVOUR_LDFLAGS += $(SYSROOT_LIBS:%=-L%) $(SYSROOT_LIBS:%=-Wl,-rpath,$(CURDIR)/%) \
                   $(SYSROOT_LIBS:%=-Wl,-rpath-link,%)
endif

TEST_FLAVOURS := test asan ubsan tsan
ifneq ($(filter $(FLAVOUR),$(TEST_FLAVOURS)),)
CPPFLAGS_ALL += -DREN_TESTING=1
endif
ifeq ($(FLAVOUR),asan)
FLAVOUR_CFLAGS  += -fsanitize=address -fno-omit-frame-pointer
FLAVOUR_LDFLAGS += -fsanitize=address
endif
ifeq ($(FLAVOUR),ubsan)
FLAVOUR_CFLAGS  += -fsanitize=undefined,float-divide-by-zero,float-cast-overflow \
                   -fno-sanitize-recover=all -fno-omit-frame-pointer
FLAVOUR_LDFLAGS += -fsanitize=undefined
endif
ifeq ($(FLAVOUR),tsan)
CPPFLAGS_ALL    += -DREN_TSAN=1
FLAVOUR_CFLAGS  += -fsanitize=thread -fno-omit-frame-pointer
FLAVOUR_LDFLAGS += -fsanitize=thread
endif

# ---------------------------------------------------------------- sources and objects

LIB_DIRS := host_api queues memory libren/core libren/device libren/device/cpu libren/graph \
            libren/ops libren/train libren/trace
TEST_DIRS := unit conformance stress fault abi golden

LIB_SOURCES   := $(sort $(wildcard $(LIB_DIRS:%=%/*.c)))
TEST_SOURCES  := $(sort $(wildcard $(TEST_DIRS:%=tests/%/test_*.c)))
TEST_SCRIPTS  := $(sort $(wildcard $(TEST_DIRS:%=tests/%/test_*.sh)))
TEST_HELPERS  := $(sort $(wildcard tests/support/*.c tests/bench/models/*.c) \
                 $(filter-out $(TEST_SOURCES),$(wildcard $(TEST_DIRS:%=tests/%/*.c))))
DEMO_DIRS     := $(sort $(patsubst %/,%,$(dir $(wildcard demos/*/*.c))))
BENCH_SOURCES := $(sort $(wildcard tests/bench/*_bench.c))
BENCH_HELPERS := $(sort $(filter-out $(BENCH_SOURCES),$(wildcard tests/bench/*.c)) \
                 $(wildcard tests/bench/*.cpp tests/bench/models/*.c))

object = $(addsuffix .o,$(addprefix $(B)/obj/,$(basename $(1))))

LIB_OBJECTS   := $(call object,$(LIB_SOURCES))
TEST_OBJECTS  := $(call object,$(TEST_HELPERS))
BENCH_OBJECTS := $(call object,$(BENCH_HELPERS))
TEST_PROGRAMS := $(patsubst %.c,$(B)/%,$(TEST_SOURCES))
DEMO_PROGRAMS := $(DEMO_DIRS:%=$(B)/%)
BENCH_PROGRAMS := $(patsubst %.c,$(B)/%,$(BENCH_SOURCES))

LIBREN_A      := $(B)/libren.a
LIBREN_SO     := $(B)/libren.so.$(SOVERSION)
LIBREN_TEST_A := $(B)/libren_test.a

# As many jobs as processors, unless the caller gave -j and so a job server already.
NPROC   = $(shell nproc 2>/dev/null || echo 1)
SUBMAKE = $(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(NPROC))

# ---------------------------------------------------------------- commands

.PHONY: all demo demo-build demo-run test test-unit test-build test-run bench bench-build bench-run \
        readme-tables asan tsan ubsan deps deps-test deps-bench check-layers check-symbols \
        check-format format install uninstall clean help

help:
	@echo 'make all            build/release/libren.a, libren.so.$(SOVERSION) and libren_cuda.so (without: CUDA=0)'
	@echo 'make demo           build and run demos/01_digits  (ARGS="--help", DEVICE=cpu|cuda)'
	@echo 'make test           build and run every test       (T=unit/test_pool runs some)'
	@echo 'make test-unit      only tests/unit'
	@echo 'make asan ubsan tsan   the same test programs under a sanitizer'
	@echo 'make bench          benchmarks; rows go to tests/bench/results/  (T=post ARGS=--quick)'
	@echo 'make readme-tables  put the benchmark tables into README.md'
	@echo 'make check-layers check-symbols check-format   what CI checks beside the tests'
	@echo 'make format         clang-format over all sources'
	@echo 'make deps           install what the build needs; deps-test, deps-bench: what those need'
	@echo 'make install uninstall   PREFIX=$(PREFIX) LIBDIR=$(LIBDIR) DESTDIR=$(DESTDIR)'
	@echo 'make cuda           build/release/libren_cuda.so   (CUDA_HOME, CUDNN_ROOT, CUDA_ARCHS="90")'
	@echo 'make test-gpu bench-gpu   tests and benchmarks on a machine with an NVIDIA GPU'
	@echo 'make clean          remove build/, but for a staged build/sysroot'
	@echo 'V=1 prints whole commands; the Makefile begins with all that can be set.'

# And the CUDA module where there is a toolkit (libren/device/cuda/module.mk).
all: $(LIBREN_A) $(LIBREN_SO)

demo:
	@CC="$(CC)" CXX="$(CXX)" sh tests/tools/deps build
	+@$(SUBMAKE) FLAVOUR=release demo-build $(if $(filter cuda,$(DEVICE)),cuda)
	+@$(MAKE) --no-print-directory FLAVOUR=release demo-run

demo-build: $(DEMO_PROGRAMS)

demo-run:
	$(B)/demos/01_digits/01_digits $(DEVICE:%=--device %) $(ARGS)

# Without the tools that only some tests need, those are skipped with a reason.
test:
	@CC="$(CC)" CXX="$(CXX)" sh tests/tools/deps build
	@CC="$(CC)" CXX="$(CXX)" sh tests/tools/deps test || echo 'going on without them'
	+@$(SUBMAKE) FLAVOUR=release all
	+@$(SUBMAKE) FLAVOUR=test test-build
	+@$(MAKE) --no-print-directory FLAVOUR=test test-run TEST_SCRIPTS_RUN="$(TEST_SCRIPTS)"

test-unit:
	@CC="$(CC)" CXX="$(CXX)" sh tests/tools/deps build
	+@$(SUBMAKE) FLAVOUR=test test-build T=tests/unit/$(T)
	+@$(MAKE) --no-print-directory FLAVOUR=test test-run T=tests/unit/$(T)

# The scripts under tests/abi look at the release build, so they are left to `make test`.
asan ubsan tsan:
	@CC="$(CC)" CXX="$(CXX)" sh tests/tools/deps build
	+@$(SUBMAKE) FLAVOUR=$@ test-build
	+@$(MAKE) --no-print-directory FLAVOUR=$@ test-run

chosen = $(if $(T),$(foreach p,$(1),$(if $(findstring $(T),$(p)),$(p))),$(1))

test-build: $(call chosen,$(TEST_PROGRAMS))

test-run:
	@CC="$(CC)" CXX="$(CXX)" TEST_TIMEOUT="$(TEST_TIMEOUT)" sh tests/tools/run-tests $(FLAVOUR) \
	    $(call chosen,$(TEST_PROGRAMS)) $(call chosen,$(TEST_SCRIPTS_RUN))

bench:
	@CC="$(CC)" CXX="$(CXX)" sh tests/tools/deps bench
	+@$(SUBMAKE) FLAVOUR=release bench-build
	+@$(MAKE) --no-print-directory FLAVOUR=release bench-run

bench-build: $(call chosen,$(BENCH_PROGRAMS))

bench-run:
	@set -e; for program in $(call chosen,$(BENCH_PROGRAMS)); do $$program $(ARGS); done

readme-tables:
	@sh tests/tools/readme-tables README.md

deps:
	@CC="$(CC)" CXX="$(CXX)" sh tests/tools/deps build

deps-test:
	@CC="$(CC)" CXX="$(CXX)" sh tests/tools/deps test

deps-bench:
	@CC="$(CC)" CXX="$(CXX)" sh tests/tools/deps bench

check-layers:
	@sh tests/tools/check-layers --self-test
	@sh tests/tools/check-layers

check-symbols:
	+@$(SUBMAKE) FLAVOUR=release all
	@CC="$(CC)" sh tests/tools/check-symbols --self-test
	@sh tests/tools/check-symbols build/release

check-format:
	@sh tests/tools/check-format check

format:
	@sh tests/tools/check-format fix

clean:
	@for entry in build/*; do \
	    if [ "$$entry" != build/sysroot ]; then rm -rf "$$entry"; fi; \
	done

# ---------------------------------------------------------------- rules

# V=1 prints whole commands, otherwise a word and the file.
Q   := $(if $(V),,@)
say  = @$(if $(V),:,printf "  %-4s  %s\n" $(1) $@)

# Rewritten only when it would change, so that every object depends on the flags it was made with.
FLAGS_NOW = $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) | $(CXX) $(CXXFLAGS_ALL) | $(LDFLAGS_ALL) $(LIBS)

$(B)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(FLAGS_NOW)' | cmp -s - $@ || echo '$(FLAGS_NOW)' > $@

.PHONY: FORCE
FORCE:

# Lists of objects, so that a library is made anew when a source file goes away.
$(B)/%.list: FORCE
	@mkdir -p $(@D)
	@echo '$($*_OBJECTS)' | cmp -s - $@ || echo '$($*_OBJECTS)' > $@

$(B)/obj/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -MMD -MP -c $< -o $@

$(B)/obj/%.o: %.cpp $(B)/flags
	@mkdir -p $(@D)
	$(call say,CXX)
	$(Q)$(CXX) $(CPPFLAGS_ALL) $(CXXFLAGS_ALL) -MMD -MP -c $< -o $@

# Made aside and moved into place, so that a link at the same time sees the old one or the new one.
archive = $(Q)rm -f $@.$$$$ && $(AR) rcs $@.$$$$ $(1) && mv -f $@.$$$$ $@

$(LIBREN_A): $(LIB_OBJECTS) $(B)/LIB.list
	$(call say,AR)
	$(call archive,$(LIB_OBJECTS))

$(LIBREN_TEST_A): $(LIB_OBJECTS) $(TEST_OBJECTS) $(B)/LIB.list $(B)/TEST.list
	$(call say,AR)
	$(call archive,$(LIB_OBJECTS) $(TEST_OBJECTS))

$(LIBREN_SO): $(LIB_OBJECTS) host_api/ren.map $(B)/LIB.list
	$(call say,LINK)
	$(Q)$(CC) -shared -Wl,-soname,libren.so.$(SOVERSION) -Wl,--version-script=host_api/ren.map \
	    -Wl,-z,defs -Wl,-z,relro,-z,now $(LDFLAGS_ALL) $(LIB_OBJECTS) $(LIBS) -o $@
	@ln -sf libren.so.$(SOVERSION) $(B)/libren.so

$(TEST_PROGRAMS): $(B)/%: $(B)/obj/%.o $(LIBREN_TEST_A)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS_ALL) $< $(LIBREN_TEST_A) -lcunit $(LIBS) -o $@

# What stands for a driver or a CUDA module that cannot serve (tests/fault/test_no_gpu.c). Drivers
# have one name, so each lies in a folder of its own; the last one is no library at all.
STUB_DRIVERS := empty stub old refuses-35 refuses-100 refuses-999 no-gpu
STUB_MODULES := no-entry refuses other-number other-size
STUB_FLAGS   := -std=c11 -O2 -fPIC -shared -fvisibility=hidden -I. $(WARNINGS)
STUBS        := $(STUB_DRIVERS:%=$(B)/tests/fault/stub/%/libcuda.so.1) \
                $(STUB_MODULES:%=$(B)/tests/fault/stub/module-%.so) \
                $(B)/tests/fault/stub/text/libcuda.so.1

$(B)/tests/fault/stub/empty/%:       STUB_IS := -DEXPORTS=0
$(B)/tests/fault/stub/stub/%:        STUB_IS := -DINIT=34
$(B)/tests/fault/stub/old/%:         STUB_IS := -DVERSION=11040
$(B)/tests/fault/stub/refuses-35/%:  STUB_IS := -DINIT=35
$(B)/tests/fault/stub/refuses-100/%: STUB_IS := -DINIT=100
$(B)/tests/fault/stub/refuses-999/%: STUB_IS := -DINIT=999
$(B)/tests/fault/stub/module-no-entry.so:     STUB_IS := -DENTRY=0
$(B)/tests/fault/stub/module-refuses.so:      STUB_IS := -DREFUSE=1
$(B)/tests/fault/stub/module-other-number.so: STUB_IS := -DABI=1000000
$(B)/tests/fault/stub/module-other-size.so:   STUB_IS := -DSIZE=8

$(filter %.1,$(filter-out %/text/libcuda.so.1,$(STUBS))): tests/fault/stub/driver.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(STUB_FLAGS) $(STUB_IS) $< -o $@

$(filter %.so,$(STUBS)): tests/fault/stub/module.c libren/device/device.h Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(STUB_FLAGS) $(STUB_IS) $< -o $@

$(B)/tests/fault/stub/text/libcuda.so.1:
	@mkdir -p $(@D)
	@echo 'no library' > $@

$(B)/tests/fault/test_no_gpu: | $(STUBS)

# The C++ queue that the benchmarks compare with is the only reason for the C++ library.
$(BENCH_PROGRAMS): $(B)/%: $(B)/obj/%.o $(BENCH_OBJECTS) $(LIBREN_A) $(B)/BENCH.list
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CXX) $(LDFLAGS_ALL) $< $(BENCH_OBJECTS) $(LIBREN_A) $(LIBS) -o $@

# A demo is one folder, made of all its .c files. It uses the shared library, beside which libren
# finds the CUDA module.
define demo_rules
$(B)/$(1): $(B)/$(1)/$(notdir $(1))
$(B)/$(1)/$(notdir $(1)): $$(call object,$$(sort $$(wildcard $(1)/*.c))) $$(LIBREN_SO)
	@mkdir -p $$(@D)
	$$(call say,LINK)
	$$(Q)$$(CC) $$(LDFLAGS_ALL) $$(filter %.o,$$^) -L$(B) -lren -Wl,-rpath,'$$$$ORIGIN/../..' \
	    $$(LIBS) -o $$@
endef
$(foreach dir,$(DEMO_DIRS),$(eval $(call demo_rules,$(dir))))
.PHONY: $(DEMO_PROGRAMS)

# Objects made only on the way to a program are kept.
.SECONDARY:

# ---------------------------------------------------------------- install

# What the templates under host_api/ leave open. The CMake files go from libraries to headers.
FILL = sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@VERSION@|$(VERSION)|g' \
           -e 's|@SOVERSION@|$(SOVERSION)|g' -e "s|@INCLUDE_FROM_LIB@|$$(realpath -m \
           --relative-to='$(LIBDIR)' '$(PREFIX)/include')|g"
TO_INCLUDE = $(DESTDIR)$(PREFIX)/include
TO_LIB     = $(DESTDIR)$(LIBDIR)

install: all
	install -d '$(TO_INCLUDE)' '$(TO_LIB)/pkgconfig' '$(TO_LIB)/cmake/libren'
	install -m 644 host_api/ren.h '$(TO_INCLUDE)/ren.h'
	install -m 644 $(LIBREN_A) '$(TO_LIB)/libren.a'
	install -m 755 $(LIBREN_SO) '$(TO_LIB)/libren.so.$(SOVERSION)'
	ln -sf libren.so.$(SOVERSION) '$(TO_LIB)/libren.so'
	if [ -e $(B)/libren_cuda.so ]; then \
	    install -m 755 $(B)/libren_cuda.so '$(TO_LIB)/libren_cuda.so'; \
	fi
	$(FILL) host_api/libren.pc.in > '$(TO_LIB)/pkgconfig/libren.pc'
	$(FILL) host_api/librenConfig.cmake.in > '$(TO_LIB)/cmake/libren/librenConfig.cmake'
	$(FILL) host_api/librenConfigVersion.cmake.in \
	    > '$(TO_LIB)/cmake/libren/librenConfigVersion.cmake'

uninstall:
	rm -f '$(TO_INCLUDE)/ren.h' '$(TO_LIB)/libren.a' '$(TO_LIB)/libren.so' \
	    '$(TO_LIB)/libren.so.$(SOVERSION)' '$(TO_LIB)/libren_cuda.so' \
	    '$(TO_LIB)/pkgconfig/libren.pc' \
	    '$(TO_LIB)/cmake/libren/librenConfig.cmake' \
	    '$(TO_LIB)/cmake/libren/librenConfigVersion.cmake'
	if [ -d '$(TO_LIB)/cmake/libren' ]; then rmdir '$(TO_LIB)/cmake/libren'; fi

-include libren/device/cuda/module.mk

-include $(wildcard $(LIB_OBJECTS:.o=.d) $(TEST_OBJECTS:.o=.d) $(BENCH_OBJECTS:.o=.d) \
         $(patsubst $(B)/%,$(B)/obj/%.d,$(TEST_PROGRAMS) $(BENCH_PROGRAMS)) \
         $(patsubst %.c,$(B)/obj/%.d,$(wildcard demos/*/*.c)))
