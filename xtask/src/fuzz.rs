//! `cargo xtask fuzz`: builds the fuzz driver with overflow checks, and runs it.
//!
//! The driver and the targets are in `tests/fuzz`. Findings
//! lie in `fuzz/findings` below the target folder.

use anyhow::Result;

use locality_shell as shell;

/// What the driver is asked for.
#[derive(clap::Args)]
pub struct Options {
    /// Seconds for each target; 0 with --replay
    seconds: f64,
    /// The only target that is tried; without, all of them
    target: Option<String>,
    /// Number from which inputs are made: equal numbers make equal inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// End each target after so many executions
    #[arg(long)]
    executions: Option<u64>,
    /// Try a saved finding of the target again
    #[arg(long)]
    replay: Option<std::path::PathBuf>,
}

/// Builds and runs the driver; findings are an error.
pub fn run(options: &Options) -> Result<()> {
    shell::need(&[("gcc", "gcc"), ("gcc", "libc6-dev")])?;
    shell::run_aside(shell::cargo().args(["build", "--profile", "fuzz", "--package", "locality-fuzz"]))?;
    let folder = shell::target_dir().join("fuzz");
    let mut driver = std::process::Command::new(folder.join("locality-fuzz"));
    driver.arg(options.seconds.to_string()).args(&options.target);
    driver.args(["--seed", &options.seed.to_string()]).arg("--folder").arg(&folder);
    if let Some(executions) = options.executions {
        driver.args(["--executions", &executions.to_string()]);
    }
    if let Some(replay) = &options.replay {
        driver.arg("--replay").arg(replay);
    }
    shell::run(&mut driver)
}
