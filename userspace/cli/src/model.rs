//! `locality-bpf model FILE`: the execution model of a traced program.
//!
//! Reads the profile and the program's files, builds
//! the skeleton, evaluates the user's changes, prints.

mod breakdown;
mod check;
mod fdata;
mod page;
mod program;
mod project;
mod svg;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use locality_execution::{
    breakdown::Breakdown,
    build::{self, Built},
    language::{Edit, Input, Skeleton, Statement},
    observed::Observed,
    parse, paths,
    paths::PathNode,
    spots::{self, Spot},
    tree::{self, Expected},
};
use locality_findings::why_empty;
use locality_kernel::writing::{check_place, say, to_stdout};
use locality_model::Profile;
use locality_runner as exact;
use locality_units::parse::WrongUse;

use self::program::Program;
use crate::cli::model_args::{CostArg, ModelArgs, ModelFormat};
use crate::plan::places;
use crate::private_file;

/// Limit of bytes of a skeleton.
const LARGEST: u64 = 64 << 20;

/// Contents of a page.
pub(crate) struct Model {
    pub profile: Profile,
    pub built: Built,
    pub observed: Observed,
    pub unread: BTreeMap<String, String>,
    /// Expected executions of the run, by the tree.
    pub expected: Result<Expected, String>,
    /// With the user's changes; `None` without any.
    pub changed: Option<Changed>,
    pub spots: Vec<Spot>,
    /// Shares of time and code in the selected spots.
    pub selected: (f64, f64),
    pub coverage: f64,
    pub leanness: f64,
    pub path: Vec<PathNode>,
    /// Shares on the traced machine by the chosen model of costs, and by the paper's roofline.
    pub by_model: Vec<project::ByModel>,
    /// The chosen model of costs.
    pub cost: CostArg,
    /// Parts of the time of spots by the chosen model.
    pub breakdown: BTreeMap<spots::Place, Breakdown>,
    /// Comparison with an exact run.
    pub checked: Option<check::Checked>,
    /// Projections to further machines.
    pub projected: Vec<project::Projected>,
}

/// Effects of the user's changes.
pub(crate) struct Changed {
    pub skeleton: Skeleton,
    /// Instructions and time, as ratios to the run.
    pub instructions: f64,
    pub time: f64,
    /// Instructions of each spot, as ratios to the run.
    pub spots: BTreeMap<spots::Place, f64>,
    /// Iterations of loops, by function and label as in the run's skeleton.
    pub trips: BTreeMap<(usize, u64), f64>,
}

/// Prints the model of a profile.
///
/// # Errors
/// A profile without samples, an unusable edited skeleton or value: one sentence.
pub fn run(args: &ModelArgs, quiet: bool) -> Result<ExitCode> {
    let file = args.file.as_path();
    let name = file.display();
    if let Some(output) = &args.output {
        private_file::keep_apart(output, &inputs(args), "model", "-o")?;
        check_place(output, "model", "-o")?;
    }
    if exact::stored(file)?.is_some() {
        bail!(
            "{name} is the report of an exact run, which keeps no control flow: the model needs the \
             profile of a trace"
        );
    }
    let mut profile = locality_profile::read(file)?;
    profile.make_printable();
    if let Some(why) = why_empty(&profile) {
        bail!("there is nothing to model in {name}: {why}");
    }
    let partial = profile.partial;
    if args.check.is_some() && !matches!(args.format, ModelFormat::Text | ModelFormat::Json) {
        return Err(WrongUse("--check needs --format text or json".to_owned()).into());
    }
    let model = make(profile, args)?;
    let page = match args.format {
        ModelFormat::Text => page::text(&model),
        ModelFormat::Json => page::json(&model)?,
        ModelFormat::Dot => page::dot(&model),
        ModelFormat::Svg => svg::page(&model),
        ModelFormat::Fdata => {
            let page = fdata::page(&model);
            if page.is_empty() {
                bail!(
                    "no branch of {name} lies in functions with symbols: BOLT needs a program that is \
                     not stripped, and windows"
                );
            }
            page
        }
        ModelFormat::Skeleton => match &model.changed {
            Some(changed) => changed.skeleton.print(),
            None => model.built.skeleton.print(),
        },
    };
    match &args.output {
        Some(output) => private_file::write(output, page.as_bytes(), "model", quiet)?,
        None => to_stdout(page.as_bytes())?,
    }
    if partial {
        say(&format!("the profile {name} is not complete: `report` says what is missing"));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Files that the model is made of, and the earlier profile.
fn inputs(args: &ModelArgs) -> Vec<PathBuf> {
    let further = args.machine.iter().chain(&args.skeleton).chain(&args.check);
    places(&args.file).into_iter().chain(further.cloned()).collect()
}

fn make(profile: Profile, args: &ModelArgs) -> Result<Model> {
    let machines = project::read(&args.machine)?;
    let program = Program::open(&profile);
    let exact = args.check.as_ref().map(|path| check::read(path, &profile)).transpose()?;
    let observed = program.observe(&profile);
    let built = build::build(&program, &observed);
    if built.functions.is_empty() {
        let why: Vec<String> =
            program.unread.iter().take(2).map(|(path, why)| format!("{path}: {why}")).collect();
        bail!("no function of the program can be read ({})", why.join("; "));
    }
    let expected = tree::evaluate(&built.skeleton).map_err(|refused| refused.to_string());
    let changed = changed(&built, args)?;
    let mut spots = spots::at_stops(&built, &observed);
    let code: usize = built.functions.iter().map(|read| read.code.instructions.len()).sum();
    let (coverage, leanness) = (args.coverage / 100.0, args.leanness / 100.0);
    let selected = spots::select(&mut spots, code, coverage, leanness);
    let path = paths::hot(&built, &observed, 0.01);
    let costs = |how| project::Costs::new(&profile, &built, &observed, &program, how);
    let chosen = costs(args.cost);
    let mut by_model: Vec<project::ByModel> = chosen.shares(&spots).into_iter().collect();
    let roofline = costs(CostArg::Paper);
    if args.cost != CostArg::Paper {
        by_model.extend(roofline.shares(&spots));
    }
    let checked = exact.map(|exact| {
        let models = match args.cost {
            CostArg::Schedule => vec![&chosen, &roofline],
            CostArg::Paper => vec![&chosen],
        };
        check::compare(&built, expected.as_ref().ok(), &exact, &models, &spots)
    });
    let breakdown = match args.format {
        ModelFormat::Text | ModelFormat::Json => chosen.breakdown(),
        _ => BTreeMap::new(),
    };
    let projected = project::project(&chosen, &spots, machines)?;
    let unread = program.unread;
    let changed = match changed {
        Some(skeleton) => Some(compare(&built, expected.as_ref(), skeleton, &spots)?),
        None => None,
    };
    Ok(Model {
        profile,
        built,
        observed,
        unread,
        expected,
        changed,
        spots,
        selected,
        coverage,
        leanness,
        path,
        by_model,
        cost: args.cost,
        breakdown,
        checked,
        projected,
    })
}

/// A model of costs in JSON.
fn cost_name(cost: CostArg) -> &'static str {
    match cost {
        CostArg::Schedule => "schedule",
        CostArg::Paper => "paper",
    }
}

/// The skeleton with the user's changes.
fn changed(built: &Built, args: &ModelArgs) -> Result<Option<Skeleton>> {
    let mut skeleton = None;
    if let Some(path) = &args.skeleton {
        let name = path.display();
        let size = std::fs::metadata(path).with_context(|| format!("cannot read {name}"))?.len();
        if size > LARGEST {
            bail!("{name} has {} MiB: a skeleton has {} MiB at most", size >> 20, LARGEST >> 20);
        }
        let text = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
        let text = String::from_utf8(text).map_err(|_| anyhow!("{name} is no text: it is not in UTF-8"))?;
        let edited = parse::parse(&text).map_err(|error| anyhow!("{name}, {error}"))?;
        for (file, build_id) in &edited.files {
            let own = built.skeleton.files.iter().find(|(known, _)| known == file);
            if let Some((_, traced)) = own.filter(|(_, traced)| traced != build_id) {
                bail!("{name} was made of another build of {file} ({build_id}) than the profile ({traced})");
            }
        }
        skeleton = Some(edited);
    }
    for change in &args.set {
        let (name, value) = change
            .rsplit_once('=')
            .ok_or_else(|| WrongUse(format!("--set wants NAME=VALUE, not {change:?}")))?;
        let value = value.trim().parse::<f64>().ok().filter(|value| value.is_finite() && value.abs() <= 1e15);
        let value =
            value.ok_or_else(|| WrongUse(format!("--set {change}: a value is a number of at most 1e15")))?;
        let skeleton = skeleton.get_or_insert_with(|| built.skeleton.clone());
        set(skeleton, name.trim(), value)?;
    }
    Ok(skeleton)
}

/// Gives an input another value.
fn set(skeleton: &mut Skeleton, name: &str, value: f64) -> Result<()> {
    let wanted = |name: &str| parse::expression(name).ok().map(|form| form.to_string());
    let mut found: Vec<(usize, usize)> = Vec::new();
    let mut known: Vec<String> = Vec::new();
    // Unknown atoms of bounds may have a value, too.
    for function in &mut skeleton.functions {
        for name in function.unknown() {
            function.inputs.push(Input { name, values: Vec::new(), from: String::new() });
        }
    }
    for (number, function) in skeleton.functions.iter().enumerate() {
        for (place, input) in function.inputs.iter().enumerate() {
            let own = input.name.to_string();
            let short = function.name.split('(').next().unwrap_or_default();
            let qualified = [function.name.as_str(), short]
                .into_iter()
                .find_map(|function| name.strip_prefix(function)?.strip_prefix('.'));
            let is = wanted(name).is_some_and(|name| name == own)
                || qualified.and_then(wanted).is_some_and(|name| name == own);
            if is {
                found.push((number, place));
            }
            known.push(format!("{}.{own}", function.name));
        }
    }
    let result = match found.as_slice() {
        [(function, place)] => {
            if let Some(input) =
                skeleton.functions.get_mut(*function).and_then(|of| of.inputs.get_mut(*place))
            {
                input.values = vec![(value, 1.0)];
                input.from = tree::SET.to_owned();
            }
            Ok(())
        }
        [] => {
            known.sort_by_key(|known| std::cmp::Reverse((1e6 * strsim::jaro_winkler(known, name)) as u64));
            known.truncate(4);
            let near = if known.is_empty() {
                "it has none at all".to_owned()
            } else {
                format!("near ones are {}", known.join(", "))
            };
            Err(WrongUse(format!("--set {name}: the skeleton has no input of that name; {near}")).into())
        }
        several => {
            let names: Vec<String> = several
                .iter()
                .filter_map(|(function, _)| {
                    Some(format!("{}.{name}", skeleton.functions.get(*function)?.name))
                })
                .take(4)
                .collect();
            Err(WrongUse(format!("--set {name}: several functions have it; say which: {}", names.join(", ")))
                .into())
        }
    };
    for function in &mut skeleton.functions {
        function.inputs.retain(|input| !input.values.is_empty());
    }
    result
}

/// Instructions with the changes, as ratios to the run.
fn compare(
    built: &Built,
    before: std::result::Result<&Expected, &String>,
    skeleton: Skeleton,
    spots: &[Spot],
) -> Result<Changed> {
    let before =
        before.map_err(|why| anyhow!("the skeleton of the run itself cannot be evaluated: {why}"))?;
    let expected = tree::evaluate(&skeleton).map_err(|refused| anyhow!("{refused}"))?;
    // Functions are matched by place, since an edited text may leave functions out.
    let places: BTreeMap<usize, usize> = built
        .skeleton
        .functions
        .iter()
        .enumerate()
        .filter_map(|(number, function)| Some((number, skeleton.find(&function.at)?)))
        .collect();
    refuse_below_zero(before, (&expected, &skeleton), &places)?;
    let factors = factors(&skeleton);
    let mut sums: BTreeMap<spots::Place, (f64, f64, f64)> = BTreeMap::new();
    let mut all = (0.0, 0.0);
    for (number, read) in built.functions.iter().enumerate() {
        for (block, info) in read.code.blocks.iter().enumerate() {
            let Some(place) = spots::spot_of(built, number, info.start) else { continue };
            let size = read.code.of(block).len() as f64;
            let old = before.blocks.get(&(number, info.start)).copied().unwrap_or(0.0) * size;
            let new = places.get(&number).and_then(|other| expected.blocks.get(&(*other, info.start)));
            let other = places.get(&number).copied().unwrap_or(usize::MAX);
            let (saved, cores) = factors.get(&(other, info.start)).copied().unwrap_or((0.0, 1.0));
            let new = new.copied().unwrap_or(0.0) * (size - saved).max(0.0);
            let sum = sums.entry(place).or_default();
            (sum.0, sum.1, sum.2) = (sum.0 + old, sum.1 + new, sum.2 + new / cores);
            (all.0, all.1) = (all.0 + old, all.1 + new);
        }
    }
    let known = sums.iter().filter(|(_, (old, ..))| *old > 0.0);
    let times: BTreeMap<spots::Place, f64> =
        known.clone().map(|(place, (old, _, time))| (*place, time / old)).collect();
    let ratios: BTreeMap<spots::Place, f64> =
        known.map(|(place, (old, new, _))| (*place, new / old)).collect();
    let known: f64 =
        spots.iter().filter(|spot| times.contains_key(&spot.place)).map(|spot| spot.share.0).sum();
    let time: f64 = spots.iter().filter_map(|spot| Some(spot.share.0 * times.get(&spot.place)?)).sum();
    let (instructions, time) = (all.1 / all.0.max(1e-300), time / known.max(1e-300));
    let trips = places
        .iter()
        .flat_map(|(number, other)| {
            let of_function = expected.trips.range((*other, 0)..=(*other, u64::MAX));
            of_function.map(move |((_, label), trips)| ((*number, *label), *trips))
        })
        .collect();
    Ok(Changed { skeleton, instructions, time, spots: ratios, trips })
}

/// Refuses changes that make trip counts negative. `places`: numbers of functions before and after the
/// changes.
fn refuse_below_zero(
    before: &Expected,
    (after, skeleton): (&Expected, &Skeleton),
    places: &BTreeMap<usize, usize>,
) -> Result<(), WrongUse> {
    for (number, other) in places {
        let found = after.below_zero.range((*other, 0)..=(*other, u64::MAX));
        let mut new = found.filter(|((_, label), _)| !before.below_zero.contains_key(&(*number, *label)));
        if let (Some(((_, label), trips)), Some(function)) = (new.next(), skeleton.functions.get(*other)) {
            return Err(WrongUse(format!(
                "with these changes the loop L{label:x} of {} would iterate {} times: a trip count is 0 or \
                 more",
                function.name,
                page::digits_of(*trips)
            )));
        }
    }
    Ok(())
}

/// For blocks in edited loops: instructions saved per execution, and cores that share the work.
fn factors(skeleton: &Skeleton) -> BTreeMap<(usize, u64), (f64, f64)> {
    let mut found = BTreeMap::new();
    for (number, function) in skeleton.functions.iter().enumerate() {
        gather(number, &function.body, 1.0, (&[], 0.0), &mut found);
    }
    found
}

/// `test`: blocks of tests, and the share of iterations without comparison and branch.
fn gather(
    function: usize,
    body: &[Statement],
    cores: f64,
    test: (&[u64], f64),
    found: &mut BTreeMap<(usize, u64), (f64, f64)>,
) {
    for statement in body {
        match statement {
            Statement::Block(block) => {
                let saved = if test.0.contains(&block.label) { 2.0 * test.1 } else { 0.0 };
                if saved > 0.0 || cores > 1.0 {
                    found.insert((function, block.label), (saved, cores));
                }
            }
            Statement::Loop(text) => {
                let (mut cores, mut unrolled) = (cores, 1.0);
                for edit in &text.edits {
                    match edit {
                        Edit::Parallel(by) => cores *= f64::from(*by),
                        Edit::Unroll(by) => unrolled *= f64::from(*by),
                        Edit::Vector(_) | Edit::Remove => {}
                    }
                }
                let test = 1.0 - 1.0 / unrolled;
                gather(function, &text.body, cores, (&text.tests, test), found);
            }
        }
    }
}
