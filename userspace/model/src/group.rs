//! Groups of samples by kind of the sampled process.

/// A kind of process, by container, unit and program. Samples of
/// equal processes have one group, whatever their process ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Group {
    /// Id of the container, as given by the container's runtime; `None` outside of containers.
    pub container: Option<String>,
    /// The container's runtime by the cgroup's name: "docker", "containerd", "cri-o", "podman",
    /// "lxc"; empty if the name does not show the runtime, and outside of containers.
    pub runtime: String,
    /// Unique id of the Kubernetes pod.
    pub pod: Option<String>,
    /// Service or scope of systemd.
    pub unit: Option<String>,
    /// Path of the cgroup, as seen from the tracer's cgroup namespace; empty if unreadable.
    pub cgroup: String,
    /// Program file as seen by the process; empty if unreadable.
    pub program: String,
    /// Name of the process' first thread (`comm`), which the program can choose.
    pub comm: String,
}
