//! Public programs with a flaw that a paper mends: built from the user's copies, edited here by line.
//!
//! `--sources DIR` has the programs as cloned, a folder each; no line of the programs
//! is stored in this repository. An edit names a line by a part of the line's text.
//! LULESH, sparselu, backprop, srad and sweep3d stand in Table IV of the paper on RDX.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use super::truth::Place;
use crate::accuracy::{process::children_seconds, score::median};
use locality_shell as shell;

/// A change of a source file.
#[derive(Debug, Clone, Copy)]
pub enum Edit {
    /// The first line with the text becomes another one.
    Replace { file: &'static str, line: &'static str, with: &'static str },
    /// Two names take each other's place in the first line
    /// with the text: two loops of equal bounds change roles.
    SwapNames { file: &'static str, line: &'static str, names: [&'static str; 2] },
    /// The first lines with the two texts, from the first line with the text `after` on, change places.
    SwapLines { file: &'static str, after: &'static str, lines: [&'static str; 2] },
}

/// Lines to name in advice.
#[derive(Debug, Clone, Copy)]
pub enum Spot {
    /// The first line with the text and several lines
    /// before: a statement and the heads of the loops.
    Statement { file: &'static str, line: &'static str, before: u64 },
    /// From the first line with the text to the next brace in the first column.
    Function { file: &'static str, line: &'static str },
}

/// A program with a flaw.
#[derive(Debug)]
pub struct Public {
    /// Name in the table.
    pub name: &'static str,
    /// Subfolder of the user's folder, and the origin.
    folder: &'static str,
    from: &'static str,
    /// Source of the program's number of rounds.
    prepare: &'static [Edit],
    /// The change.
    mend: &'static [Edit],
    /// The change of many lines, in sh.
    mend_by: &'static str,
    /// Variables of the environment that mend the program in place of an edit.
    environment: &'static [(&'static str, &'static str)],
    /// Makes `program` in the folder; sh.
    build: &'static str,
    /// Arguments; `$ROUNDS` is the number of rounds, as the variable of that name is.
    arguments: &'static [&'static str],
    /// Rounds of some seconds.
    rounds: u64,
    /// Kinds of advice that ask for the change.
    pub kinds: &'static [&'static str],
    /// Further kinds that are right at the place, without a measured gain.
    pub also: &'static [&'static str],
    spots: &'static [Spot],
}

const REPEAT: &str = "for (long round = atol(getenv(\"ROUNDS\")); round > 0; round--)";
const POLYBENCH: &str = "https://github.com/MatthiasJReisinger/PolyBenchC-4.2.1";
const RODINIA: &str = "https://github.com/yuhc/gpu-rodinia";
/// A number of rounds that no trace outlasts.
const FOREVER: u64 = 1_000_000_000;

/// The programs.
pub const PROGRAMS: &[Public] = &[
    Public {
        name: "LULESH",
        folder: "LULESH",
        from: "https://github.com/LLNL/LULESH",
        prepare: &[],
        mend: &[],
        // Freed memory stays the program's: the next step's fields need no fresh pages.
        mend_by: "",
        environment: &[
            ("MALLOC_TRIM_THRESHOLD_", "4000000000"),
            ("MALLOC_MMAP_THRESHOLD_", "4000000000"),
            ("MALLOC_TOP_PAD_", "500000000"),
        ],
        build: "g++ -O2 -g -DUSE_MPI=0 -w -o program lulesh*.cc",
        arguments: &["-s", "70", "-i", "$ROUNDS"],
        rounds: 8,
        kinds: &["keep_buffer"],
        also: &["fuse"],
        spots: &[
            Spot::Function { file: "lulesh.cc", line: "void CalcHourglassControlForElems(" },
            Spot::Function { file: "lulesh.cc", line: "void CalcFBHourglassForceForElems(" },
        ],
    },
    Public {
        name: "sparselu",
        folder: "bots",
        from: "https://github.com/bsc-pm/bots",
        prepare: &[Edit::Replace {
            file: "serial/sparselu/app-desc.h",
            line: "#define KERNEL_CALL",
            with: "#define KERNEL_CALL for (long round = atol(getenv(\"ROUNDS\")); round > 0; round--) sparselu(SEQ);",
        }],
        mend: &[Edit::SwapNames {
            file: "serial/sparselu/sparselu.c",
            line: "inner[i*bots_arg_size_1+j] = inner",
            names: ["j", "k"],
        }],
        mend_by: "",
        environment: &[],
        build: "gcc -O2 -g -w -Icommon -Iserial/sparselu -DCDATE='\"\"' -DCMESSAGE='\"\"' -DCC='\"\"' -DLD='\"\"' \
                -DCFLAGS='\"\"' -DLDFLAGS='\"\"' -o program serial/sparselu/sparselu.c common/bots_main.c \
                common/bots_common.c -lm",
        arguments: &["-n", "30", "-m", "100"],
        rounds: 4,
        kinds: &["interchange", "accumulators", "vectorise"],
        also: &[],
        spots: &[Spot::Statement {
            file: "serial/sparselu/sparselu.c",
            line: "inner[i*bots_arg_size_1+j] = inner",
            before: 3,
        }],
    },
    Public {
        name: "backprop",
        folder: "gpu-rodinia/openmp/backprop",
        from: RODINIA,
        prepare: &[Edit::Replace {
            file: "facetrain.c",
            line: "bpnn_train_kernel(net",
            with: "for (long round = atol(getenv(\"ROUNDS\")); round > 0; round--) bpnn_train_kernel(net, &out_err, &hid_err);",
        }],
        mend: &[Edit::SwapLines {
            file: "backprop.c",
            after: "void bpnn_adjust_weights(",
            lines: ["for (j = 1;", "for (k = 0;"],
        }],
        mend_by: "",
        environment: &[],
        build: "gcc -std=gnu99 -w -O2 -g -fopenmp -o program facetrain.c backprop.c imagenet.c backprop_kernel.c -lm",
        arguments: &["2000000"],
        rounds: 8,
        kinds: &["interchange"],
        also: &["tile"],
        spots: &[Spot::Function { file: "backprop.c", line: "void bpnn_adjust_weights(" }],
    },
    Public {
        name: "srad",
        folder: "gpu-rodinia/openmp/srad/srad_v1",
        from: RODINIA,
        prepare: &[Edit::Replace {
            file: "main.c",
            line: "image.pgm\",",
            with: "read_graphics(\"image.pgm\",",
        }],
        mend: &[Edit::SwapLines {
            file: "main.c",
            after: "ROI statistics for entire ROI",
            lines: ["for (i=r1;", "for (j=c1;"],
        }],
        mend_by: "",
        environment: &[],
        build: "gcc -O2 -g -w -fopenmp -o program main.c -lm; awk 'BEGIN { print \"P2\\n502 458\\n255\"; \
                for (i = 0; i < 502 * 458; i++) print i * 7919 % 251 }' > image.pgm",
        arguments: &["$ROUNDS", "0.5", "2000", "2000", "1"],
        rounds: 40,
        kinds: &["interchange"],
        also: &[],
        spots: &[Spot::Statement { file: "main.c", line: "= image[i + Nr*j];", before: 2 }],
    },
    Public {
        name: "sweep3d",
        folder: "sweep3d",
        from: "https://github.com/goyalankit/sweep3d",
        // Calls of a library that is not in the folder.
        prepare: &[
            Edit::Replace { file: "driver.f", line: "CALL indigo__init", with: "" },
            Edit::Replace { file: "driver.f", line: "CALL indigo__create_map", with: "" },
        ],
        mend: &[],
        // The moment becomes the second subscript of four.
        mend_by: "sed -E -i 's/\\b([Ff]lux)\\(([^,()]+),([^,()]+),([^,()]+),([^,()]+)\\)/\\1(\\2,\\5,\\3,\\4)/g' *.f",
        environment: &[],
        build: "gfortran -O2 -g -w -std=legacy -o sweep driver.f read_input.f decomp.f inner_auto.f inner.f \
                initialize.f source.f sweep.f flux_err.f octant.f single_stuff.f timers.c; \
                printf '#!/bin/sh\nprintf \"1 1 10 2 16\\n150 150 150 6 1\\n.1 .1 .1 -$ROUNDS.0\\n0 0 0\\n0 1 -7\\n\" \
                > input\nexec ./sweep\n' > program; chmod +x program",
        arguments: &[],
        rounds: 2,
        kinds: &["interchange", "soa", "split"],
        also: &["tile"],
        spots: &[Spot::Statement { file: "sweep.f", line: "flux(i,j,k,n) = flux(i,j,k,n)", before: 6 }],
    },
    Public {
        name: "HydroC",
        folder: "Hydro/HydroC/HydroC99_2DMpi/Src",
        from: "https://github.com/HydroBench/Hydro",
        // gcc 12 fails where a function's declaration and definition have arrays of variable length.
        prepare: &[Edit::Replace { file: "conservar.c", line: "#include \"conservar.h\"", with: "" }],
        mend: &[
            Edit::SwapLines {
                file: "conservar.c",
                after: "private(j, s), shared(u)",
                lines: ["for (s = 0;", "for (j = Hjmin;"],
            },
            Edit::SwapLines {
                file: "conservar.c",
                after: "private(j, s), shared(uold)",
                lines: ["for (s = 0;", "for (j = (Hjmin"],
            },
        ],
        mend_by: "",
        environment: &[],
        build: "rm hydro_numa.c; gcc -std=gnu99 -fgnu89-inline -O2 -g -w -o hydro *.c -lm -lrt; \
                printf '#!/bin/sh\nprintf \"&RUN\\ntend=2000\\nnstepmax=$ROUNDS\\n/\\n&MESH\\nnx=1000\\nny=1000\\n\
                nxystep=100\\nprt=0\\ndx=0.05\\nboundary_left=1\\nboundary_right=1\\nboundary_down=1\\nboundary_up=1\\n\
                testcase=1\\n/\\n&HYDRO\\ncourant_factor=0.8\\nniter_riemann=10\\n/\\n\" > input\n\
                exec ./hydro -i input\n' > program; chmod +x program",
        arguments: &[],
        rounds: 16,
        kinds: &["interchange"],
        also: &["tile"],
        spots: &[
            Spot::Statement { file: "conservar.c", line: "u[IP][s][j] = uold", before: 5 },
            Spot::Statement { file: "conservar.c", line: "uold[IHU(rowcol + s, j, IP)] = u", before: 5 },
        ],
    },
    Public {
        name: "mvt",
        folder: "PolyBenchC-4.2.1",
        from: POLYBENCH,
        prepare: &[Edit::Replace {
            file: "linear-algebra/kernels/mvt/mvt.c",
            line: "polybench_start_instruments;",
            with: REPEAT,
        }],
        mend: &[Edit::SwapNames {
            file: "linear-algebra/kernels/mvt/mvt.c",
            line: "x2[i] = x2[i] +",
            names: ["i", "j"],
        }],
        mend_by: "",
        environment: &[],
        build: "gcc -O2 -g -w -DN=4000 -Iutilities -o program linear-algebra/kernels/mvt/mvt.c utilities/polybench.c",
        arguments: &[],
        rounds: 40,
        kinds: &["interchange"],
        also: &[],
        spots: &[Spot::Statement {
            file: "linear-algebra/kernels/mvt/mvt.c",
            line: "x2[i] = x2[i] +",
            before: 2,
        }],
    },
    Public {
        name: "gemver",
        folder: "PolyBenchC-4.2.1",
        from: POLYBENCH,
        prepare: &[Edit::Replace {
            file: "linear-algebra/blas/gemver/gemver.c",
            line: "polybench_start_instruments;",
            with: REPEAT,
        }],
        mend: &[Edit::SwapNames {
            file: "linear-algebra/blas/gemver/gemver.c",
            line: "x[i] = x[i] + beta",
            names: ["i", "j"],
        }],
        mend_by: "",
        environment: &[],
        build: "gcc -O2 -g -w -DN=4000 -Iutilities -o program linear-algebra/blas/gemver/gemver.c utilities/polybench.c",
        arguments: &[],
        rounds: 30,
        kinds: &["interchange"],
        also: &[],
        spots: &[Spot::Statement {
            file: "linear-algebra/blas/gemver/gemver.c",
            line: "x[i] = x[i] + beta",
            before: 2,
        }],
    },
    Public {
        name: "2mm",
        folder: "PolyBenchC-4.2.1",
        from: POLYBENCH,
        prepare: &[Edit::Replace {
            file: "linear-algebra/kernels/2mm/2mm.c",
            line: "polybench_start_instruments;",
            with: REPEAT,
        }],
        mend: &[
            Edit::SwapLines {
                file: "linear-algebra/kernels/2mm/2mm.c",
                after: "#pragma scop",
                lines: ["for (j = 0; j < _PB_NJ", "for (k = 0; k < _PB_NK"],
            },
            Edit::SwapLines {
                file: "linear-algebra/kernels/2mm/2mm.c",
                after: "#pragma scop",
                lines: ["for (j = 0; j < _PB_NL", "for (k = 0; k < _PB_NJ"],
            },
            Edit::Replace {
                file: "linear-algebra/kernels/2mm/2mm.c",
                line: "tmp[i][j] = SCALAR_VAL(0.0)",
                with: "if (k == 0) for (j = 0; j < _PB_NJ; j++) tmp[i][j] = 0;",
            },
            Edit::Replace {
                file: "linear-algebra/kernels/2mm/2mm.c",
                line: "D[i][j] *= beta",
                with: "if (k == 0) for (j = 0; j < _PB_NL; j++) D[i][j] *= beta;",
            },
        ],
        mend_by: "",
        environment: &[],
        build: "gcc -O2 -g -w -DLARGE_DATASET -Iutilities -o program linear-algebra/kernels/2mm/2mm.c utilities/polybench.c",
        arguments: &[],
        rounds: 3,
        kinds: &["interchange", "tile"],
        also: &[],
        spots: &[
            Spot::Statement {
                file: "linear-algebra/kernels/2mm/2mm.c",
                line: "tmp[i][j] += alpha",
                before: 5,
            },
            Spot::Statement { file: "linear-algebra/kernels/2mm/2mm.c", line: "D[i][j] += tmp", before: 5 },
        ],
    },
];

impl Edit {
    const fn file(&self) -> &'static str {
        match self {
            Self::Replace { file, .. } | Self::SwapNames { file, .. } | Self::SwapLines { file, .. } => file,
        }
    }

    /// Applies the change to the lines of the file.
    fn apply(&self, lines: &mut [String]) -> Result<()> {
        match self {
            Self::Replace { line, with, .. } => {
                let at = find(lines, 0, line)?;
                set(lines, at, (*with).to_owned());
            }
            Self::SwapNames { line, names, .. } => {
                let at = find(lines, 0, line)?;
                let text = lines.get(at).map(|line| swap_names(line, names)).unwrap_or_default();
                set(lines, at, text);
            }
            Self::SwapLines { after, lines: [first, second], .. } => {
                let from = find(lines, 0, after)?;
                let (first, second) = (find(lines, from, first)?, find(lines, from, second)?);
                lines.swap(first, second);
            }
        }
        Ok(())
    }
}

fn set(lines: &mut [String], at: usize, text: String) {
    if let Some(line) = lines.get_mut(at) {
        *line = text;
    }
}

/// The first line with the text, from one on.
fn find(lines: &[String], from: usize, text: &str) -> Result<usize> {
    let found = lines.iter().skip(from).position(|line| line.contains(text));
    found.map(|at| from + at).with_context(|| format!("no line has `{text}`: is this another version?"))
}

/// Two names in each other's place; they are whole words.
fn swap_names(line: &str, [one, other]: &[&str; 2]) -> String {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut text = String::new();
    let mut rest = line;
    while let Some(letter) = rest.chars().next() {
        let end = rest.find(|next| is_word(next) != is_word(letter)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        text += if word == *one {
            other
        } else if word == *other {
            one
        } else {
            word
        };
        rest = after;
    }
    text
}

impl Public {
    /// Why the program is skipped, if the folder is missing.
    pub fn missing(&self, sources: &Path) -> Option<String> {
        let from = sources.join(self.folder);
        (!from.is_dir()).then(|| format!("skipped, for there is no {}; {} has it", from.display(), self.from))
    }

    /// The program in both ways, built.
    ///
    /// # Errors
    /// Sources of another version; a build that fails.
    pub fn built(&self, sources: &Path, into: &Path) -> Result<[PathBuf; 2]> {
        let from = sources.join(self.folder);
        let built = ["flawed", "mended"].map(|way| {
            let place = into.join(format!("{}-{way}", self.name));
            self.build_way(&from, &place, way == "mended").map(|()| place)
        });
        let [flawed, mended] = built;
        Ok([flawed?, mended?])
    }

    fn build_way(&self, from: &Path, place: &Path, mended: bool) -> Result<()> {
        if place.exists() {
            std::fs::remove_dir_all(place)?;
        }
        shell::run_aside(Command::new("cp").arg("-a").arg(from).arg(place))?;
        let mend = if mended { self.mend } else { &[] };
        for edit in self.prepare.iter().chain(mend) {
            let path = place.join(edit.file());
            let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let mut lines: Vec<String> = String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
            edit.apply(&mut lines).with_context(|| path.display().to_string())?;
            std::fs::write(&path, lines.join("\n") + "\n")?;
        }
        let script =
            |text: &str| shell::run_aside(Command::new("sh").args(["-e", "-c", text]).current_dir(place));
        if mended {
            script(self.mend_by)?;
        }
        script(self.build)
    }

    /// The places of the flaw in the flawed sources.
    pub fn places(&self, flawed: &Path) -> Result<Vec<Place>> {
        self.spots.iter().map(|spot| spot.place(flawed)).collect()
    }

    /// CPU time of a round flawed divided by that of a round mended: medians of
    /// several turns. Runs of one round show the time of the start, which is left out.
    pub fn speedup(&self, [flawed, mended]: &[PathBuf; 2], turns: usize) -> Result<f64> {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..turns {
            for (times, (folder, is_mended)) in times.iter_mut().zip([(flawed, false), (mended, true)]) {
                let start = self.seconds(folder, is_mended, 1)?;
                times.push((self.seconds(folder, is_mended, self.rounds + 1)? - start).max(1e-9));
            }
        }
        let [flawed, mended] = times.map(|times| median(&times).context("no turn was measured"));
        Ok(flawed? / mended?)
    }

    fn seconds(&self, folder: &Path, mended: bool, rounds: u64) -> Result<f64> {
        let mut command = self.command(folder, mended, rounds);
        let before = children_seconds()?;
        let status = command.stderr(Stdio::null()).stdout(Stdio::null()).status()?;
        if !status.success() {
            bail!("`{}` failed: {status}", shell::words(&command));
        }
        Ok(children_seconds()? - before)
    }

    /// The flawed program with more rounds than a trace takes.
    pub fn endless(&self, flawed: &Path) -> Command {
        self.command(flawed, false, FOREVER)
    }

    fn command(&self, folder: &Path, mended: bool, rounds: u64) -> Command {
        let rounds = rounds.to_string();
        let mut command = Command::new(folder.join("program"));
        command.args(self.arguments.iter().map(|word| word.replace("$ROUNDS", &rounds)));
        command.current_dir(folder).env("ROUNDS", rounds).env("OMP_NUM_THREADS", "1");
        if mended {
            command.envs(self.environment.iter().copied());
        }
        command
    }
}

impl Spot {
    fn place(&self, folder: &Path) -> Result<Place> {
        let (Self::Statement { file, line, .. } | Self::Function { file, line }) = self;
        let path = folder.join(file);
        let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let lines: Vec<String> = String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
        let at = find(&lines, 0, line).with_context(|| path.display().to_string())?;
        let number = at as u64 + 1;
        let (first, last) = match self {
            Self::Statement { before, .. } => (number.saturating_sub(*before), number),
            Self::Function { .. } => {
                let closing = lines.iter().skip(at).position(|line| line.starts_with('}'));
                (number, number + closing.unwrap_or(lines.len() - at) as u64)
            }
        };
        let file = Path::new(file).file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Place { file, first, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(edit: Edit, text: &str) -> Result<String> {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        edit.apply(&mut lines)?;
        Ok(lines.join("|"))
    }

    #[test]
    fn names_are_swapped_as_whole_words() {
        let swapped = swap_names("inner[i*n_j+j] -= jj[i*m+k] * k2[k*m+j];", &["j", "k"]);
        assert_eq!(swapped, "inner[i*n_j+k] -= jj[i*m+j] * k2[j*m+k];");
    }

    #[test]
    fn lines_are_found_after_the_one_that_is_named() {
        let text = "for i\nfor j\nhere\nfor i\nfor j\n";
        let swap = Edit::SwapLines { file: "a", after: "here", lines: ["for i", "for j"] };
        assert_eq!(edited(swap, text).unwrap(), "for i|for j|here|for j|for i");
        let replace = Edit::Replace { file: "a", line: "for j", with: "x" };
        assert_eq!(edited(replace, text).unwrap(), "for i|x|here|for i|for j");
        let missing = Edit::SwapNames { file: "a", line: "while", names: ["i", "j"] };
        assert!(edited(missing, text).unwrap_err().to_string().contains("`while`"));
    }

    #[test]
    fn places_are_statements_with_the_loops_around_or_functions() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.c"), "void f(\n int x)\n{\n for\n  for\n   y = x;\n}\n")
            .unwrap();
        let place = |spot: Spot| {
            let Place { first, last, .. } = spot.place(folder.path()).unwrap();
            (first, last)
        };
        assert_eq!(place(Spot::Statement { file: "a.c", line: "y = x", before: 2 }), (4, 6));
        assert_eq!(place(Spot::Function { file: "a.c", line: "void f(" }), (1, 7));
    }
}
