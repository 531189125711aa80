//! Debian's kernels and their images, by apt with separate folders. Nothing is installed.
//!
//! The mirror is apt's for Debian on this machine, or a given one. Limits: Debian's flavour
//! `cloud-amd64`, the smallest with the required features built in.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail};

use locality_shell as shell;

/// Suites with kernels, without security updates. A mirror need not have every suite.
const SUITES: [&str; 8] = [
    "bullseye",
    "bookworm",
    "bookworm-updates",
    "bookworm-backports",
    "trixie",
    "trixie-updates",
    "trixie-backports",
    "sid",
];
const SECURITY: [&str; 3] = ["bullseye-security", "bookworm-security", "trixie-security"];

/// Package lists are fetched anew after so long.
const LISTS_AGE: Duration = Duration::from_secs(24 * 3600);

/// Smaller packages only refer to others.
const IMAGE_BYTES: u64 = 1_000_000;

/// A kernel of Debian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Major and minor version.
    pub series: (u32, u32),
    /// Upstream and Debian version, as numbers, to compare.
    version: Vec<u64>,
    /// What `uname -r` says.
    pub release: String,
    /// The package that has the image.
    package: String,
}

/// A folder with apt's lists, and the images that were fetched.
pub struct Packages {
    folder: PathBuf,
}

impl Packages {
    /// Fetches the package lists, if those at hand are old.
    pub fn open(folder: &Path, mirror: Option<&str>) -> Result<Self> {
        shell::need(&[("apt-get", "apt"), ("dpkg-deb", "dpkg"), ("tar", "tar")])?;
        for part in ["lists/partial", "cache/archives/partial", "images"] {
            fs::create_dir_all(folder.join(part))?;
        }
        let packages = Self { folder: folder.to_owned() };
        let sources = sources(mirror)?;
        let list = folder.join("sources.list");
        let is_same = fs::read_to_string(&list).is_ok_and(|had| had == sources);
        if is_same && age(&folder.join("fetched")).is_some_and(|age| age < LISTS_AGE) {
            return Ok(packages);
        }
        fs::write(&list, sources)?;
        fs::write(folder.join("status"), "")?;
        // Fails for a missing suite; the remaining suites count.
        let update = packages.apt("apt-get").args(["-q", "update"]).stdout(Stdio::null()).status()?;
        if !update.success() {
            eprintln!("not every suite is on this mirror");
        }
        fs::write(folder.join("fetched"), "")?;
        Ok(packages)
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let folder = |part: &str| self.folder.join(part).display().to_string();
        for (option, value) in [
            ("Dir::State", folder("")),
            ("Dir::State::lists", folder("lists")),
            ("Dir::State::status", folder("status")),
            ("Dir::Cache", folder("cache")),
            ("Dir::Etc::sourcelist", folder("sources.list")),
            ("Dir::Etc::sourceparts", "-".to_owned()),
            ("APT::Architecture", "amd64".to_owned()),
            ("APT::Sandbox::User", "root".to_owned()),
            ("Acquire::Languages", "none".to_owned()),
        ] {
            command.args(["-o", &format!("{option}={value}")]);
        }
        command
    }

    /// The newest kernel of each series, oldest series first.
    pub fn newest(&self) -> Result<Vec<Kernel>> {
        let output = self.apt("apt-cache").arg("dumpavail").stderr(Stdio::null()).output()?;
        let mut found: Vec<Kernel> =
            String::from_utf8_lossy(&output.stdout).split("\n\n").filter_map(kernel).collect();
        found.sort_by(|a, b| (a.series, &a.version).cmp(&(b.series, &b.version)));
        found.reverse();
        found.dedup_by_key(|kernel| kernel.series);
        found.reverse();
        if found.is_empty() {
            bail!("no kernel of Debian is on this mirror: --mirror URL names another");
        }
        Ok(found)
    }

    /// The kernel's image, fetched if missing.
    pub fn image(&self, kernel: &Kernel) -> Result<PathBuf> {
        let images = self.folder.join("images");
        let image = images.join(format!("vmlinuz-{}-{}", kernel.release, numbers(&kernel.version)));
        if fs::metadata(&image).is_ok_and(|image| image.len() > IMAGE_BYTES) {
            return Ok(image);
        }
        let part = self.folder.join(format!("part-{}", kernel.release));
        fs::create_dir_all(&part)?;
        shell::run_aside(self.apt("apt-get").args(["-q", "download", &kernel.package]).current_dir(&part))?;
        let package = fs::read_dir(&part)?.flatten().map(|entry| entry.path()).find(|path| is_deb(path));
        let package = package.with_context(|| format!("{} was not fetched", kernel.package))?;
        // Its path changed with Linux 6.19.
        let mut unpack = Command::new("sh");
        unpack.args([
            "-c",
            r#"dpkg-deb --fsys-tarfile "$1" | tar -xO --wildcards '*/vmlinuz*' > "$2""#,
            "sh",
        ]);
        shell::run_aside(unpack.arg(&package).arg(part.join("vmlinuz")))?;
        fs::rename(part.join("vmlinuz"), &image)?;
        fs::remove_dir_all(&part)?;
        Ok(image)
    }
}

fn is_deb(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "deb")
}

fn age(path: &Path) -> Option<Duration> {
    SystemTime::now().duration_since(fs::metadata(path).ok()?.modified().ok()?).ok()
}

/// A kernel that a paragraph of a package list describes.
fn kernel(paragraph: &str) -> Option<Kernel> {
    let field = |name: &str| paragraph.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let package = field("Package")?;
    let release = package.strip_prefix("linux-image-").or_else(|| package.strip_prefix("linux-binary-"))?;
    if !release.ends_with("-cloud-amd64") || field("Size")?.parse::<u64>().ok()? < IMAGE_BYTES {
        return None;
    }
    let version = parse_numbers(field("Version")?);
    let series = (u32::try_from(*version.first()?).ok()?, u32::try_from(*version.get(1)?).ok()?);
    // Release candidates and local builds have names of another form.
    release.starts_with(&format!("{}.{}.", series.0, series.1)).then(|| Kernel {
        series,
        version,
        release: release.to_owned(),
        package: package.to_owned(),
    })
}

/// The numbers in a text. A `~` marks an older version, so the rest is ignored.
fn parse_numbers(version: &str) -> Vec<u64> {
    let version = version.split('~').next().unwrap_or_default();
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

fn numbers(version: &[u64]) -> String {
    version.iter().map(u64::to_string).collect::<Vec<_>>().join(".")
}

/// apt's list of sources: the suites of the mirror, and
/// of the neighbouring mirror for security updates.
fn sources(mirror: Option<&str>) -> Result<String> {
    let keys = Path::new("/usr/share/keyrings");
    let keyring = ["debian-archive-keyring.pgp", "debian-archive-keyring.gpg"];
    let keyring = || keyring.iter().map(|name| keys.join(name)).find(|path| path.exists());
    if keyring().is_none() {
        shell::install(&["debian-archive-keyring"])?;
    }
    let keyring = keyring().context("the keys of Debian's archive are missing: debian-archive-keyring")?;
    let targets = Command::new("apt-get")
        .args(["indextargets", "--format", "$(RELEASE) $(SITE)", "Created-By: Packages"])
        .output()
        .context("cannot run apt-get")?;
    let targets = String::from_utf8_lossy(&targets.stdout).into_owned();
    let site = |suites: &[&str]| {
        targets.lines().find_map(|line| {
            let (release, site) = line.split_once(' ')?;
            suites.contains(&release).then(|| site.to_owned())
        })
    };
    let main = mirror.map(str::to_owned).or_else(|| site(&SUITES)).context(
        "apt of this machine knows no mirror of Debian, whose kernels are booted: --mirror URL names one",
    )?;
    let line =
        |site: &str, suite: &str| format!("deb [signed-by={}] {site} {suite} main\n", keyring.display());
    let mut list: String = SUITES.iter().map(|suite| line(&main, suite)).collect();
    if let Some(security) = site(&SECURITY) {
        list.extend(SECURITY.iter().map(|suite| line(&security, suite)));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_from_what_only_names_them() {
        let paragraph = |package: &str, version: &str, size: u64| {
            format!("Package: {package}\nVersion: {version}\nSize: {size}")
        };
        let found = |package, version, size| kernel(&paragraph(package, version, size));
        let stable = found("linux-image-6.1.0-56-cloud-amd64", "6.1.192-2", 26_713_492).unwrap();
        assert_eq!((stable.series, stable.release.as_str()), ((6, 1), "6.1.0-56-cloud-amd64"));
        let split = found("linux-binary-7.3.4+deb13-cloud-amd64", "7.3.4-1~bpo13+1", 13_604_064).unwrap();
        assert_eq!((split.series, split.version), ((7, 3), vec![7, 3, 4, 1]));
        for (package, size) in [
            ("linux-image-7.3.4+deb13-cloud-amd64", 1928),
            ("linux-image-7.3.4+deb13-amd64", 50_000_000),
            ("linux-image-7.3.4+deb13-cloud-amd64-unsigned", 50_000_000),
            ("linux-modules-7.3.4+deb13-cloud-amd64", 22_918_420),
            ("linux-image-cloud-amd64", 50_000_000),
        ] {
            assert_eq!(found(package, "7.3.4-1~bpo13+1", size), None, "{package}");
        }
    }
}
