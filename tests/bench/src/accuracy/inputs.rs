//! The inputs of the corpus: made here, equal on every
//! machine: exact reports of the inputs can be stored.
//!
//! Text is words of made-up letters with frequencies by Zipf's law, because compressors
//! and searches see little reuse in random bytes and too much in a repeated line.

use std::{
    fmt::Write as _,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use locality_shell as shell;

const PYTHON: &str = "import sys
def work():
    d = {}
    s = 0
    for i in range(60000):
        k = (i * 7919) & 0x3fff
        d[k] = d.get(k, 0) + i
        s ^= d[k]
    words = [str((i * 2654435761) & 0xffff) for i in range(15000)]
    words.sort()
    return s + len(' '.join(words).split('7'))
for _ in range(int(sys.argv[1])):
    print(work(), flush=True)
";

const PERL: &str = r#"$| = 1; for my $round (1 .. $ARGV[0]) {
    my (%h, @a, $s);
    for my $i (1 .. 40000) { my $k = $i * 7919 & 0x1fff; $h{$k} .= "x$i"; $s += length $h{$k}; }
    for my $k (sort { $a <=> $b } keys %h) { push @a, $1 if $h{$k} =~ /x(\d+3)x/; }
    print "$s ", scalar @a, "\n";
}
"#;

/// Counts words.
pub const AWK: &str = "{ for (i = 1; i <= NF; i++) { n[$i]++; if (length($i) > m) m = length($i) } } END { print m, n[\"the\"] }\n";

const SQL: &str = "create table t(a integer primary key, b text, c int);
with recursive n(i) as (select 1 union all select i+1 from n where i<12000)
  insert into t select i, hex(i*7919%1000003), i*31%1009 from n;
create index ti on t(c);
select sum(length(x.b)), count(*) from t x join t y on x.c = y.c where x.a % 17 = 3;
drop table t;
";

/// Makes the missing inputs in the folder; gives the path of cc1.
///
/// # Errors
/// A compiler or git that fails; a folder that cannot be written.
pub fn prepare(dir: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut random = Random(1);
    write(dir, "text", text(&mut random, 1_500_000).as_bytes())?;
    write(dir, "small", text(&mut random, 250_000).as_bytes())?;
    write(dir, "tiny", text(&mut random, 80_000).as_bytes())?;
    write(dir, "large", text(&mut Random(2), 8_000_000).as_bytes())?;
    for (name, content) in [("work.py", PYTHON), ("work.pl", PERL), ("work.awk", AWK), ("work.sql", SQL)] {
        write(dir, name, content.as_bytes())?;
    }
    let sources = shell::root().join("tests/programs/corpus");
    for name in ["dense", "irregular"] {
        let source = sources.join(name).with_extension("c");
        let header = sources.join("corpus.h");
        let text = [std::fs::read(&source)?, std::fs::read(header)?].concat();
        // Compiled only when the source is new: the program's bytes are part of what exact reports
        // are stored by.
        if write(dir, &format!("{name}.source"), &text)? || !dir.join(name).exists() {
            let to = dir.join(name);
            shell::run_aside(Command::new("gcc").args(["-O2", "-g", "-o"]).arg(to).arg(source).arg("-lm"))?;
        }
    }
    if !dir.join("source.i").exists() {
        let to = dir.join("source.i");
        let source = sources.join("dense.c");
        shell::run_aside(Command::new("gcc").args(["-E", "-P", "-o"]).arg(to).arg(source))?;
    }
    if !dir.join("objects").exists() {
        repository(dir, &mut Random(3))?;
    }
    let cc1 = Command::new("gcc").arg("-print-prog-name=cc1").output().context("cannot run gcc")?;
    Ok(PathBuf::from(String::from_utf8_lossy(&cc1.stdout).trim()))
}

/// Writes unless the file has the content already; returns whether the file was written.
fn write(dir: &Path, name: &str, content: &[u8]) -> Result<bool> {
    let file = dir.join(name);
    if std::fs::read(&file).is_ok_and(|there| there == content) {
        return Ok(false);
    }
    std::fs::write(&file, content).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(true)
}

/// A repository of 150 versions of a text, packed, and the names of 60 of its objects.
fn repository(dir: &Path, random: &mut Random) -> Result<()> {
    let place = dir.join("repository");
    if place.exists() {
        std::fs::remove_dir_all(&place)?;
    }
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", dir).arg("-C").arg(&place).args(arguments);
        command
    };
    std::fs::create_dir(&place)?;
    shell::run_aside(&mut git(&["init", "-q", "--bare"]))?;
    let mut lines: Vec<String> = (0..600).map(|_| text(random, 60).trim_end().to_owned()).collect();
    let mut stream = String::new();
    for version in 0..150_u64 {
        for _ in 0..12 {
            let at = random.below(lines.len() as u64) as usize;
            if let Some(line) = lines.get_mut(at) {
                *line = text(random, 60).trim_end().to_owned();
            }
        }
        let content = lines.join("\n") + "\n";
        let time = 1_600_000_000 + version * 3600;
        writeln!(stream, "blob\nmark :{}\ndata {}\n{content}", version + 1, content.len())?;
        writeln!(
            stream,
            "commit refs/heads/main\ncommitter a <a@b> {time} +0000\ndata 2\nv\nM 100644 :{} file",
            version + 1
        )?;
    }
    let mut import =
        git(&["fast-import", "--quiet"]).stdin(Stdio::piped()).spawn().context("cannot run git")?;
    let written = import.stdin.take().map(|mut pipe| pipe.write_all(stream.as_bytes()));
    if !import.wait()?.success() || !matches!(written, Some(Ok(()))) {
        bail!("git fast-import failed");
    }
    shell::run_aside(&mut git(&["repack", "-a", "-d", "-f", "-q"]))?;
    let list = git(&["cat-file", "--batch-check", "--batch-all-objects"]).output()?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let blobs = list
        .lines()
        .filter(|line| line.contains(" blob "))
        .take(60)
        .filter_map(|line| line.split(' ').next());
    let names: String = blobs.map(|name| format!("{name}\n")).collect();
    if names.is_empty() {
        bail!("git lists no objects in {}", place.display());
    }
    write(dir, "objects", names.as_bytes())?;
    Ok(())
}

/// Marsaglia's xorshift64 with a multiplier (Vigna 2016): the same on every machine.
pub struct Random(pub u64);

impl Random {
    /// A number below the limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((u128::from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)) * u128::from(limit)) >> 64) as u64
    }

    /// Rank r of 4,000 with a chance of about 1/r.
    fn rank(&mut self) -> u64 {
        let share = self.below(1 << 30) as f64 / f64::from(1 << 30);
        4000_f64.powf(share) as u64
    }
}

/// Lines of words, at least that many bytes.
pub fn text(random: &mut Random, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 100);
    while text.len() < bytes {
        for _ in 0..4 + random.below(9) {
            text += &word(random.rank());
            text.push(' ');
        }
        text.pop();
        text.push('\n');
    }
    text
}

/// The word of a rank: frequent ones are shorter.
fn word(rank: u64) -> String {
    const SYLLABLES: [&str; 16] = [
        "ta", "ro", "ne", "sil", "ka", "mo", "der", "un", "li", "per", "sta", "vo", "ing", "el", "tho", "ga",
    ];
    let mut left = rank * 7 + 3;
    let mut word = String::new();
    while left > 0 {
        word += SYLLABLES.get((left % 16) as usize).copied().unwrap_or_default();
        left /= 16;
    }
    if rank.is_multiple_of(3) { word + "e" } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_the_same_each_time_and_its_words_are_unequally_frequent() {
        let text = |seed| super::text(&mut Random(seed), 100_000);
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
        let text = text(1);
        let count = |rank| text.split_whitespace().filter(|w| **w == word(rank)).count() as f64;
        // Zipf: the first rank is some eight times as frequent as the eighth.
        let ratio = count(1) / count(8);
        assert!((4.0..16.0).contains(&ratio), "{ratio}");
    }
}
