"""llm-dist for Spack. From a checkout: `spack repo add packaging/spack`, then `spack dev-build llm-dist@main`."""
from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class LlmDist(CMakePackage, CudaPackage):
    """Distributed inference of large language models: one native program whose ranks, started by mpirun or Slurm, share
    one model across devices and nodes and serve it over an OpenAI-compatible HTTP API."""

    maintainers = []

    # The checkout that `spack dev-build` or `spack develop` is told of: the recipe names no address to fetch from.
    version("main")

    variant("mpi", default=True, description="The module with which ranks meet over MPI; without it, over TCP alone")

    generator("ninja")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("rust@1.85:", type="build")
    depends_on("boost@1.81:")
    depends_on("cli11@2.1:")
    depends_on("highway@1.0.3:")
    depends_on("nlohmann-json@3.11:")
    depends_on("onednn@3.0:3 cpu_runtime=omp")
    depends_on("openssl@3:")
    depends_on("prometheus-cpp@1.0:")
    depends_on("spdlog@1.10:")
    depends_on("sqlite@3.37:")
    depends_on("tomlplusplus@3.3:")
    depends_on("mpi", when="+mpi")
    depends_on("cuda@12.9:", when="+cuda")
    depends_on("nccl@2.18:", when="+cuda")

    conflicts("%gcc@:11", msg="C++20 of gcc 12 or newer is needed")
    conflicts("target=aarch64:", msg="the CPU kernels are for x86-64 with AVX2")
    conflicts("cuda_arch=none", when="+cuda", msg="say which GPUs: cuda_arch=90a")

    def cmake_args(self):
        args = [
            self.define("LLM_DIST_TESTS", self.run_tests),
            self.define("LLM_DIST_WERROR", False),
            # Spack's own search paths lead to the libraries: nothing is copied beside the program.
            self.define("LLM_DIST_BUNDLE", False),
            self.define("LLM_DIST_CUDA", "ON" if self.spec.satisfies("+cuda") else "OFF"),
            self.define("CMAKE_DISABLE_FIND_PACKAGE_MPI", self.spec.satisfies("~mpi")),
        ]
        if self.spec.satisfies("+cuda"):
            args += [
                self.define("LLM_DIST_CUDA_ARCHITECTURES", ";".join(self.spec.variants["cuda_arch"].value)),
                self.define("LLM_DIST_NCCL_ROOT", self.spec["nccl"].prefix),
            ]
        return args

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_program(self):
        Executable(self.prefix.bin.join("llm-dist"))("--version")
