# shellcheck shell=bash
# What differs from site to site, for the batch scripts beside this file. Copy it, change the copy, then
#   source my-site.sh && sbatch launch/slurm/serve.sbatch MODEL
# sbatch reads the SBATCH_* variables; the job reads the rest. Without sourcing it, a job takes this file.

# Where to run: what `sinfo` and your administrator say. Empty: the cluster's default.
site_partition=${site_partition:-}
site_account=${site_account:-}
# Given to every job step: --gpus-per-task would hide a node's GPUs from each other, --gpus-per-node does not.
site_srun_flags=${site_srun_flags:-}
# none: the ranks meet over TCP by themselves, and NCCL carries what GPUs send. pmix: MPI starts them, where Slurm and
# Open MPI agree about PMIx; CPU ranks of one node are faster then.
site_mpi=${site_mpi:-none}
# Network interface of the ranks' own sockets ("ib0"). Empty: that on which the ranks meet.
site_interface=${site_interface:-}
# Where the ranks meet: the first node's name must lead there from the others. Where it does not, set MASTER_ADDR.
# export MASTER_ADDR=…

# How often a job whose world failed is put back into the queue.
site_max_restarts=${site_max_restarts:-3}
# The program.
site_llm_dist=${site_llm_dist:-llm-dist}

# Runs on the first node before llm-dist: environment modules.
site_prepare() {
  # module load openmpi/4.1 cuda/13.0
  :
}
# Prints the words to put in front of llm-dist: a container, if there is one.
site_container() {
  # echo "apptainer exec --nv /software/llm-dist.sif"
  :
}

LLM_DIST_SITE=$(realpath "${BASH_SOURCE[0]}")
export LLM_DIST_SITE
[ -z "$site_partition" ] || export SBATCH_PARTITION=$site_partition
[ -z "$site_account" ] || export SBATCH_ACCOUNT=$site_account
