# SPDX-License-Identifier: MIT
# libren/device/cuda/module.mk - the CUDA module, and what runs on a machine with a GPU.
#
# Targets   cuda        build/$(FLAVOUR)/libren_cuda.so, beside libren.so.0; part of `make all`
#           test-gpu    every suite that can run on the CUDA device; skipped (77) without a GPU
#           bench-gpu   tests/gpu/bench_device, bench_costs and bench_ops; training steps, plans and
#                       inference; the same steps in PyTorch where it is there; rows go to
#                       tests/bench/results/
#           stage       put the packages that a machine without a registry lacks into build/stage;
#                       there, `make sysroot` unpacks them
# Toolkit   CUDA_HOME, then /usr/local/cuda, then nvcc's place on PATH, of 12.4 or later; cuDNN 9
#           from CUDNN_ROOT, the toolkit, or the system. Without them, and with CUDA=0, `cuda` says
#           so in one line and does nothing.
# Variables CUDA, CUDA_HOME, CUDNN_ROOT, CUDA_ARCHS ("75 80 86 89 90"; PTX of the last one is added)

CUDA_NVCC := $(firstword $(wildcard $(addsuffix /bin/nvcc,$(CUDA_HOME) /usr/local/cuda) \
             $(addsuffix /nvcc,$(subst :, ,$(PATH)))))
CUDA_ROOT := $(patsubst %/bin/nvcc,%,$(CUDA_NVCC))
CUDA_LIBS := $(firstword $(wildcard $(addprefix $(CUDA_ROOT)/,lib64 lib targets/x86_64-linux/lib)))
CUDNN_INC := $(firstword $(patsubst %/cudnn.h,%,$(wildcard \
             $(addsuffix /cudnn.h,$(CUDNN_ROOT:%=%/include) $(CUDA_ROOT)/include /usr/include \
             /usr/include/x86_64-linux-gnu /usr/include/aarch64-linux-gnu))))
CUDNN_LIB := $(firstword $(patsubst %/libcudnn.so.9,%,$(wildcard \
             $(addsuffix /libcudnn.so.9,$(CUDNN_ROOT:%=%/lib64) $(CUDNN_ROOT:%=%/lib) $(CUDA_LIBS) \
             /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu))))

CUDA_OLDEST  := 12040
CUDA_VERSION := $(shell sed -n 's/^.define CUDA_VERSION //p' $(CUDA_ROOT)/include/cuda.h 2>&1)
# Why there can be no module here; empty where there can.
CUDA_AWAY    := $(if $(filter 0,$(CUDA)),CUDA=0,$(if $(CUDA_NVCC),$(if \
                $(shell [ "$(CUDA_VERSION)" -ge $(CUDA_OLDEST) ] 2>/dev/null && echo new),$(if \
                $(and $(CUDNN_INC),$(CUDNN_LIB)),,no cuDNN 9 (set CUDNN_ROOT)),the CUDA toolkit in \
                $(CUDA_ROOT) is older than 12.4),no CUDA toolkit (set CUDA_HOME)))

comma_ := ,
space_ := $(subst ,, )
CUDA_ARCHS ?= 75 80 86 89 90
CUDA_CODE  := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
              -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))

CUDA_DIR     := libren/device/cuda
CUDA_OUT     := build/cuda
CUDA_MODULE  := $(CUDA_OUT)/libren_cuda.so
CUDA_OBJECTS := $(addprefix $(CUDA_OUT)/,$(addsuffix .o,$(notdir \
                $(sort $(wildcard $(CUDA_DIR)/*.c $(CUDA_DIR)/*.cu)))))

# System folders are searched anyway, and naming them again would change their order.
CUDA_INCLUDES := -isystem $(CUDA_ROOT)/include \
                 $(addprefix -isystem ,$(filter-out /usr/include%,$(CUDNN_INC)))
CUDA_CFLAGS   := -std=c11 -D_GNU_SOURCE -I. $(CUDA_INCLUDES) -O2 -g -fPIC -pthread \
                 -fvisibility=hidden $(WARNINGS) -Wno-deprecated-declarations $(EXTRA_CFLAGS)
CUDA_NVFLAGS  := -std=c++17 -O3 -lineinfo -I. $(CUDA_CODE) \
                 -Xcompiler -fPIC,-fvisibility=hidden,-Wall
CUDA_LDFLAGS  := -shared -pthread -Wl,-soname,libren_cuda.so \
                 -Wl,--version-script=$(CUDA_DIR)/module.map -Wl,-z,defs -Wl,-z,relro,-z,now \
                 -Wl,--exclude-libs,ALL -L$(CUDA_LIBS) $(addprefix -L,$(CUDNN_LIB)) \
                 $(addprefix -Wl$(comma_)-rpath$(comma_),$(sort $(CUDA_LIBS) $(CUDNN_LIB)))
# nvcc guards the statics in its launch stubs with the C++ library, which cuDNN loads anyway.
CUDA_LINK     := -lcudart_static -lcublasLt -l:libcudnn.so.9 -lstdc++ -lrt -ldl -lm

.PHONY: cuda test-gpu test-gpu-build test-gpu-run bench-gpu bench-gpu-build stage sysroot

stage:
	@sh tests/gpu/stage.sh pack

sysroot:
	@sh tests/gpu/stage.sh unpack

ifeq ($(FLAVOUR),release)
all: cuda
endif

# tests/unit/test_cuda_codes is made of the module's own object where there are headers to compile
# it with; the file changes when that does.
$(B)/cuda-headers: FORCE
	@mkdir -p $(@D)
	@echo '$(if $(CUDA_AWAY),none,$(CUDA_INCLUDES))' | cmp -s - $@ || \
	    echo '$(if $(CUDA_AWAY),none,$(CUDA_INCLUDES))' > $@

$(B)/obj/tests/unit/test_cuda_codes.o: $(B)/cuda-headers

ifneq ($(CUDA_AWAY),)

cuda:
	@echo 'cuda: left out: $(CUDA_AWAY)'

test-gpu bench-gpu:
	@echo '$@: skipped: $(CUDA_AWAY)'; exit 77

else

cuda: $(B)/libren_cuda.so

$(CUDA_OUT)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(CUDA_NVCC) $(CUDA_CFLAGS) $(CUDA_NVFLAGS) $(CUDA_LDFLAGS)' | cmp -s - $@ || \
	    echo '$(CC) $(CUDA_NVCC) $(CUDA_CFLAGS) $(CUDA_NVFLAGS) $(CUDA_LDFLAGS)' > $@

$(CUDA_OUT)/%.c.o: $(CUDA_DIR)/%.c $(CUDA_OUT)/flags
	$(call say,CC)
	$(Q)$(CC) $(CUDA_CFLAGS) -MMD -MP -c $< -o $@

$(CUDA_OUT)/%.cu.o: $(CUDA_DIR)/%.cu $(CUDA_OUT)/flags
	$(call say,NVCC)
	$(Q)$(CUDA_NVCC) $(CUDA_NVFLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

$(CUDA_MODULE): $(CUDA_OBJECTS) $(CUDA_DIR)/module.map
	$(call say,LINK)
	$(Q)$(CC) $(CUDA_LDFLAGS) $(CUDA_OBJECTS) $(CUDA_LINK) -o $@

$(B)/libren_cuda.so: $(CUDA_MODULE)
	@mkdir -p $(@D)
	@cp -f $< $@

# ---------------------------------------------------------------- tests and benchmark

# Private: the flavour's list of flags is a prerequisite and must not see these.
CUDA_CODES := $(CUDA_OUT)/fault.c.o
$(B)/obj/tests/unit/test_cuda_codes.o: private CPPFLAGS_ALL += $(CUDA_INCLUDES) \
    -DREN_TEST_CUDA_HEADERS=1
$(B)/tests/unit/test_cuda_codes: private LIBS := $(CUDA_CODES) $(LIBS)
$(B)/tests/unit/test_cuda_codes: $(CUDA_CODES)

GPU_TESTS    := $(patsubst %.c,$(B)/%,$(sort $(wildcard tests/gpu/test_*.c)))
GPU_HELPERS  := $(addprefix $(B)/obj/tests/gpu/,table.o values.o reference.o spin.o lost.o)
GPU_BENCH    := $(addprefix $(B)/tests/gpu/,bench_device bench_costs bench_ops)
GPU_LINK     := -L$(CUDA_LIBS) -lcudart_static -lrt -ldl
GPU_SUITES   := conformance golden stress fault
GPU_PROGRAMS := $(foreach s,$(GPU_SUITES),$(filter $(B)/tests/$(s)/%,$(TEST_PROGRAMS))) $(GPU_TESTS)

$(B)/obj/tests/gpu/%.o: private CPPFLAGS_ALL += $(CUDA_INCLUDES)

$(GPU_TESTS): $(B)/%: $(B)/obj/%.o $(GPU_HELPERS) $(LIBREN_TEST_A)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS_ALL) $< $(GPU_HELPERS) $(LIBREN_TEST_A) -lcunit $(LIBS) $(GPU_LINK) -o $@

$(B)/tests/gpu/bench_ops: GPU_LINK += $(addprefix -L,$(CUDNN_LIB)) -l:libcudnn.so.9

$(GPU_BENCH): $(B)/%: $(B)/obj/%.o $(B)/obj/tests/gpu/spin.o $(B)/obj/tests/bench/bench.o \
              $(LIBREN_A)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS_ALL) $(filter %.o,$^) $(LIBREN_A) $(LIBS) $(GPU_LINK) -o $@

# Libraries of the staged folder need one another, which a program's own path does not cover.
GPU_PATH := $(if $(SYSROOT_LIBS),LD_LIBRARY_PATH=$(subst $(space_),:,$(SYSROOT_LIBS:%=$(CURDIR)/%)))

test-gpu:
	+@$(SUBMAKE) FLAVOUR=test test-gpu-build
	+@$(MAKE) --no-print-directory FLAVOUR=test test-gpu-run

test-gpu-build: $(B)/libren_cuda.so $(call chosen,$(GPU_PROGRAMS))

# The first program says whether there is a GPU at all.
test-gpu-run:
	@export REN_TEST_DEVICE=cuda REN_TEST_MODULE=$(CURDIR)/$(B)/libren_cuda.so $(GPU_PATH); \
	said=$$($(B)/tests/gpu/test_cuda_device refusals 2>&1); code=$$?; \
	if [ $$code -ne 0 ]; then printf '%s\n' "$$said"; exit $$code; fi; \
	CC="$(CC)" CXX="$(CXX)" TEST_TIMEOUT="$(TEST_TIMEOUT)" sh tests/tools/run-tests $(FLAVOUR) \
	    $(call chosen,$(GPU_PROGRAMS))

bench-gpu:
	+@$(SUBMAKE) FLAVOUR=release bench-gpu-build
	@export $(or $(GPU_PATH),REN=1); set -e; at=build/release/tests; \
	module="--module $(CURDIR)/build/release/libren_cuda.so"; \
	$$at/gpu/bench_device $$module $(ARGS); \
	$$at/gpu/bench_costs $(ARGS); \
	$$at/gpu/bench_ops $$module $(ARGS); \
	$$at/bench/step_bench --device cuda $$module --autotune 1 $(ARGS); \
	$$at/bench/plan_bench --device cuda $$module $(ARGS); \
	$$at/bench/infer_bench --device cuda $$module $(ARGS); \
	python3 tests/bench/torch_peer.py --cases "$$($$at/bench/step_bench --device cuda --list 1)" \
	    $(ARGS)

bench-gpu-build: $(B)/libren_cuda.so $(GPU_BENCH) $(B)/tests/bench/step_bench \
                 $(B)/tests/bench/plan_bench $(B)/tests/bench/infer_bench

-include $(CUDA_OBJECTS:.o=.d) $(GPU_HELPERS:.o=.d) $(patsubst $(B)/%,$(B)/obj/%.d,$(GPU_TESTS)) \
         $(GPU_BENCH:$(B)/%=$(B)/obj/%.d)

endif
