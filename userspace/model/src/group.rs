//! Groups of samples: who the sampled process was.

/// A kind of process, by where it runs and what it runs. Samples of equal processes have one group, whatever
/// their process ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Group {
    /// Id of the container, as its runtime gave it; `None` outside of containers.
    pub container: Option<String>,
    /// The container's runtime by the cgroup's name: "docker", "containerd", "cri-o", "podman", "lxc"; empty
    /// where the name does not tell, and outside of containers.
    pub runtime: String,
    /// Unique id of the Kubernetes pod.
    pub pod: Option<String>,
    /// Service or scope of systemd.
    pub unit: Option<String>,
    /// Path of the cgroup, as seen from the tracer's cgroup namespace; empty where it could not be read.
    pub cgroup: String,
    /// Program file as the process sees it; empty where it could not be read.
    pub program: String,
    /// Name of the process' first thread (`comm`), which the program can choose.
    pub comm: String,
}
