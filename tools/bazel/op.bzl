"""One op is one library: x.h (contract), x.cc (checks, enqueues), cpu/x_cpu.cc and cuda/x_cuda.cu
(kernels)."""

load("//tools/bazel:cc.bzl", "cc_library")
load("//tools/cuda:defs.bzl", "cuda_library", "if_cuda")

def op_library(name, deps = [], cuda_deps = [], **kwargs):
    """A target named after the op's header.

    Args:
      name: the op; its kernels may be declared in a private header, cpu/<name>_cpu.h. Those for CUDA
        are what cuda/<name>_cuda.h and .cu hold, where they are there: see cuda_kernels().
      deps: what it needs beyond the runtime and the argument checks.
      cuda_deps: what cuda/<name>_cuda.cu and its header include beyond cuda/launch.h and its own.
      **kwargs: passed on to cc_library.
    """
    cuda = []
    if native.glob(["cuda/%s_cuda.cu" % name]):
        cuda_kernels(name = name + "_cuda", deps = cuda_deps)
        cuda = [":%s_cuda" % name]
    cc_library(
        name = name,
        srcs = [name + ".cc", "cpu/%s_cpu.cc" % name] +
               native.glob(["cpu/%s_cpu.h" % name, "cuda/%s_cuda.h" % name]),
        hdrs = [name + ".h"],
        deps = depset(deps + cuda + [
            "//trainer/core:view",
            "//trainer/ops:arguments",
            "//trainer/runtime",
        ]).to_list(),
        **kwargs
    )

def cuda_kernels(name, file = None, deps = [], visibility = []):
    """cuda/<file>.cu behind cuda/<file>.h: compiled by nvcc under --config=cuda, and by nobody else.

    <name>: the header, and under --config=cuda what it declares; elsewhere its functions, which are
    weak, are null. <name>_nvcc: the object file.

    Args:
      name: of the target.
      file: if not the same.
      deps: what both files include beyond cuda/launch.h; of other kernels the <name> above.
      visibility: of <name>, beside the tests.
    """
    header = "cuda/%s.h" % (file or name)
    source = "cuda/%s.cu" % (file or name)
    deps = deps + ["//trainer/ops:cuda_launch"]
    native.cc_library(
        name = name,
        hdrs = [header],
        visibility = ["//tests:__subpackages__"] + visibility,
        deps = deps + if_cuda([":%s_nvcc" % name]),
    )
    cuda_library(
        name = name + "_nvcc",
        src = source,
        hdrs = [header],
        tags = ["manual"],
        visibility = ["//tests:__subpackages__"],
        deps = deps,
    )

def kernel_library(name, deps = [], copts = [], **kwargs):
    """cpu/<name>.cc compiled for each instruction set, behind cpu/<name>.h: see trainer/ops/cpu/isa.h.

    Args:
      name: of the source and the header.
      deps: what both use.
      copts: for both.
      **kwargs: passed on to cc_library.
    """
    for isa, flags in {
        "avx2": [],
        "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    }.items():
        native.cc_library(
            name = name + "_" + isa,
            srcs = ["cpu/%s.cc" % name, "cpu/%s.h" % name],
            copts = ["-O3"] + copts + flags,  # In every build: what must be inlined is.
            visibility = ["//tests:__subpackages__"],
            deps = deps + ["//trainer/ops:isa"],
        )
    native.cc_library(
        name = name,
        hdrs = ["cpu/%s.h" % name],
        deps = deps + [":%s_avx2" % name, ":%s_avx512" % name],
        **kwargs
    )

def op_test(name, deps = [], kernels = None, epilogues = None, emulated_deps = [], **kwargs):
    """The tests of the op <name>, on the harness of tests/testing, from the source <name>_test.cc.

    <name>_test runs its CPU kernels, <name>_emulated_test its CUDA kernels on the emulator;
    <name>_cublaslt_emulated_test the same with the emulator's cuBLASLt for its products.

    Args:
      name: the op.
      deps: what the tests need beyond the harness.
      kernels: the .cu files, without their ending, all kernels of which the tests launch;
        <name>_cuda.
      epilogues: those of cublasLtEpilogue_t that its products have there, all of which must be
        called; with them it has that third test.
      emulated_deps: what is linked into <name>_emulated_test besides: libraries' fakes.
      **kwargs: passed on to cc_test.
    """
    native.cc_library(
        name = name + "_test_suite",
        testonly = True,
        srcs = [name + "_test.cc"],
        linkstatic = True,
        alwayslink = True,
        visibility = ["//visibility:private"],
        deps = deps + [
            "//tests/testing:harness",
            "//trainer/ops:" + name,
            "@googletest//:gtest",
        ],
    )
    native.cc_test(
        name = name + "_test",
        size = "small",
        deps = [
            ":%s_test_suite" % name,
            "//tests/testing:cpu_test_device",
            "@googletest//:gtest_main",
        ],
        **kwargs
    )
    native.cc_test(
        name = name + "_emulated_test",
        size = "small",
        env = {"FSDP_TRAIN_EMULATED_KERNELS": " ".join([name + "_cuda"] if kernels == None else kernels)},
        # Memory is protected by the emulator, too, and instrumented kernels take ten minutes to compile.
        tags = ["asan_with_everything"],
        deps = [
            ":%s_test_suite" % name,
            "//tests/emulated:kernels",
            "//tests/emulated:test_device",
            "@googletest//:gtest_main",
        ] + emulated_deps,
        **kwargs
    )
    if epilogues:
        native.cc_test(
            name = name + "_cublaslt_emulated_test",
            size = "small",
            env = {"FSDP_TRAIN_EMULATED_EPILOGUES": " ".join(epilogues)},
            tags = ["no_sanitizer"],  # Its kernels run in the tests above.
            deps = [
                ":%s_test_suite" % name,
                "//tests/emulated:kernels",
                "//tests/emulated:cublaslt_test_device",
                "@googletest//:gtest_main",
            ],
            **kwargs
        )

def gpu_op_tests(name, rules, emulated_rules):
    """The tests of all ops above it in the BUILD file as one program, for a machine with a GPU.

    <name> is built under --config=cuda alone. <name>_emulated is the same over the emulator's
    runtime, and as a test it runs those of a few ops: what differs is the harness.

    Args:
      name: of the program.
      rules: tests of the libraries that ops call.
      emulated_rules: the same of the emulator's.
    """
    suites = sorted([":" + rule for rule in native.existing_rules() if rule.endswith("_test_suite")])
    native.cc_binary(
        name = name,
        testonly = True,
        linkopts = ["-Wl,-rpath,'$$ORIGIN/../lib'"],  # The folder lib/ of the kit.
        tags = ["manual"],
        target_compatible_with = if_cuda([], ["//tools/bazel:incompatible"]),
        deps = suites + rules + [
            "//tests/testing:cuda_test_device",
            "//tests/testing:stack_on_term",
            "@googletest//:gtest_main",
        ],
    )
    native.cc_test(
        name = name + "_emulated",
        size = "small",
        args = ["--gtest_filter=*Activation*:*AdamW*:*Cast*:*Rope*:*Sgd*:*StepParameters*"],
        tags = ["asan_with_everything"],
        visibility = ["//tests/tools:__pkg__"],
        deps = suites + emulated_rules + [
            "//tests/emulated:cuda_test_device",
            "//tests/emulated:kernels",
            "//tests/testing:stack_on_term",
            "@googletest//:gtest_main",
        ],
    )
