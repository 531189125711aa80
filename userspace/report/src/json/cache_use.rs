//! Cache use for programs: `cache_use` of the report, with the fields of the exact one.

use locality_estimate::calling_context::{ContextId, Contexts, UNKNOWN_CALLER};
use locality_estimate::interval_estimate::Estimate;
use locality_findings::cache_use::{
    CacheUse, Costs, FunctionLoss, LevelUse, Loaded, LoadingLine, ObjectLoss,
};
use locality_model::{AccessKind, FieldId, ObjectId, Profile};

use super::frames::Frames;
use crate::cache_use::{LINE, NO_PATH, UNKNOWN};
use crate::estimates::ci95;
use crate::names::kind_name;
use crate::schema::{
    Interval, Number,
    cache_use::{self as schema, Both, LoadedObject, LoadingContext, UnknownCaller},
    place::Caller,
};

/// Callers reported of a line.
const DEPTH: usize = 16;
/// Objects reported with a line.
const OBJECTS: usize = 4;

/// What is printed of.
pub(crate) struct Json<'a> {
    pub profile: &'a Profile,
    pub contexts: &'a Contexts,
    pub cache_use: &'a CacheUse,
    pub frames: &'a Frames<'a>,
}

impl Json<'_> {
    /// The field.
    pub fn report(&self) -> schema::CacheUse {
        let levels = &self.cache_use.levels;
        let lines = levels.iter().flat_map(|level| level.by_line.iter().map(|line| self.line(level, line)));
        let functions = levels
            .iter()
            .flat_map(|level| level.by_function.iter().map(|function| self.function(level, function)));
        let objects = levels
            .iter()
            .flat_map(|level| level.by_object.iter().map(|object| self.object_loss(level, object)));
        let objects: Vec<schema::ObjectLoss> = objects.collect();
        let unknown = || levels.iter().map(|level| (level.name.clone(), &level.unknown_caller));
        schema::CacheUse {
            balanced: Some(levels.iter().all(|level| level.balanced)),
            by_function: functions.collect(),
            by_loading_line: lines.collect(),
            by_object: Some(objects).filter(|objects| !objects.is_empty()),
            left_out: Some(self.cache_use.left_out),
            levels: levels.iter().map(level_use).collect(),
            n: Some(self.cache_use.n),
            rows_left_out: levels.iter().map(|level| level.rows_left_out as u64).sum(),
            unknown_caller: UnknownCaller {
                spatial_loss_bytes: unknown().map(|(name, lost)| (name, lost.value.into())).collect(),
                spatial_loss_bytes_ci95: Some(unknown().map(|(name, lost)| (name, ci95(lost))).collect()),
                ..UnknownCaller::default()
            },
            ..schema::CacheUse::default()
        }
    }

    fn line(&self, level: &LevelUse, line: &LoadingLine) -> schema::LoadingLine {
        let place = self.caller(line.frame);
        let context = self.context(line.context(), &line.loaded);
        let object = |(object, field, share): &(ObjectId, Option<FieldId>, f64)| LoadedObject {
            field: field.and_then(|field| self.field(field)),
            name: self.object(*object),
            share: (*share).into(),
        };
        let access = if line.kind == AccessKind::Store { "store" } else { "load" };
        schema::LoadingLine {
            access: Some(access.to_owned()),
            access_cost: Some(context.access_cost),
            access_cost_ci95: Some(context.access_cost_ci95),
            access_count: Some(context.access_count),
            access_count_ci95: Some(context.access_count_ci95),
            callers: context.callers,
            ci95: Some(context.ci95),
            contexts: Some(line.contexts.iter().map(|(at, loaded)| self.context(*at, loaded)).collect()),
            contexts_total: Some(line.contexts_total as u64),
            cut: context.cut,
            file: place.file,
            function: place.function,
            level: level.name.clone(),
            line: place.line,
            lines_loaded: context.lines_loaded,
            lines_loaded_ci95: Some(context.lines_loaded_ci95),
            module: place.module,
            n: Some(context.n),
            object: Some(line.objects.first().and_then(|(object, ..)| self.object(*object))),
            objects: Some(line.objects.iter().take(OBJECTS).map(object).collect()),
            share: context.share,
            spatial_loss_bytes: context.spatial_loss_bytes,
            spatial_loss_bytes_ci95: Some(context.spatial_loss_bytes_ci95),
            traffic_share: context.traffic_share,
            traffic_share_ci95: Some(context.traffic_share_ci95),
            used_bytes_per_line: Some(context.used_bytes_per_line),
            used_bytes_per_line_ci95: Some(context.used_bytes_per_line_ci95),
        }
    }

    /// Loads below a call path: its callers, innermost first, and the reason for missing outer
    /// ones.
    fn context(&self, context: Option<ContextId>, loaded: &Loaded) -> LoadingContext {
        let frames = context.map_or(&[][..], |context| self.contexts.frames(context));
        let cut = context.map_or(Some(NO_PATH), |context| self.contexts.cut(context));
        let Loaded { costs, traffic, share, used, accesses } = loaded;
        LoadingContext {
            access_cost: costs.access_cost.value.into(),
            access_cost_ci95: ci95(&costs.access_cost),
            access_count: accesses.value.into(),
            access_count_ci95: ci95(accesses),
            callers: frames.iter().skip(1).take(DEPTH).filter_map(|id| self.frames.caller(*id)).collect(),
            ci95: ci95(share),
            cut: cut.map(str::to_owned),
            lines_loaded: costs.lines.value.into(),
            lines_loaded_ci95: ci95(&costs.lines),
            n: share.n,
            share: share.value.into(),
            spatial_loss_bytes: costs.lost.value.into(),
            spatial_loss_bytes_ci95: ci95(&costs.lost),
            traffic_share: traffic.value.into(),
            traffic_share_ci95: ci95(traffic),
            used_bytes_per_line: used.value.into(),
            used_bytes_per_line_ci95: ci95(used),
        }
    }

    fn object_loss(&self, level: &LevelUse, object: &ObjectLoss) -> schema::ObjectLoss {
        let known = object.object.and_then(|id| self.profile.objects.get(id.0 as usize));
        let Loaded { costs, traffic, share, used, accesses } = &object.loaded;
        schema::ObjectLoss {
            access_cost: Some(costs.access_cost.value.into()),
            access_cost_ci95: Some(ci95(&costs.access_cost)),
            access_count: Some(accesses.value.into()),
            access_count_ci95: Some(ci95(accesses)),
            ci95: Some(ci95(share)),
            kind: kind_name(known.map(|object| object.kind).unwrap_or_default()).to_owned(),
            level: level.name.clone(),
            lines_loaded: costs.lines.value.into(),
            lines_loaded_ci95: Some(ci95(&costs.lines)),
            n: Some(share.n),
            name: known.map_or(UNKNOWN, |object| &object.name).to_owned(),
            share: share.value.into(),
            spatial_loss_bytes: costs.lost.value.into(),
            spatial_loss_bytes_ci95: Some(ci95(&costs.lost)),
            traffic_share: traffic.value.into(),
            traffic_share_ci95: Some(ci95(traffic)),
            used_bytes_per_line: Some(used.value.into()),
            used_bytes_per_line_ci95: Some(ci95(used)),
            ..schema::ObjectLoss::default()
        }
    }

    fn function(&self, level: &LevelUse, function: &FunctionLoss) -> schema::FunctionLoss {
        let place = self.caller(function.frame);
        schema::FunctionLoss {
            access_cost: Some(values(function, |costs| costs.access_cost)),
            access_cost_ci95: Some(intervals(function, |costs| costs.access_cost)),
            ci95: Some(ci95(&function.share)),
            file: place.file,
            function: Some(place.function.unwrap_or_else(|| UNKNOWN_CALLER.to_owned())),
            inclusive: function.inclusive.lost.value.into(),
            inclusive_ci95: Some(ci95(&function.inclusive.lost)),
            level: level.name.clone(),
            line: None,
            lines_loaded: values(function, |costs| costs.lines),
            lines_loaded_ci95: Some(intervals(function, |costs| costs.lines)),
            module: place.module,
            n: Some(function.share.n),
            own: function.own.lost.value.into(),
            own_ci95: Some(ci95(&function.own.lost)),
            share: function.share.value.into(),
            traffic_share: function.of_traffic.value.into(),
            traffic_share_ci95: Some(ci95(&function.of_traffic)),
        }
    }

    fn caller(&self, id: Option<locality_model::FrameId>) -> Caller {
        id.and_then(|id| self.frames.caller(id)).map(|caller| Caller::clone(&caller)).unwrap_or_default()
    }

    fn object(&self, id: ObjectId) -> Option<String> {
        self.profile.objects.get(id.0 as usize).map(|object| object.name.clone())
    }

    fn field(&self, id: FieldId) -> Option<String> {
        let field = self.profile.fields.get(id.0 as usize)?;
        (!field.path.is_empty()).then(|| field.path.clone())
    }
}

fn level_use(level: &LevelUse) -> schema::LevelUse {
    let Costs { lines, lost, access_cost } = &level.costs;
    schema::LevelUse {
        access_cost: Some(access_cost.value.into()),
        access_cost_ci95: Some(ci95(access_cost)),
        bytes: level.bytes,
        bytes_loaded: (lines.value * LINE).into(),
        level: level.name.clone(),
        line: LINE.into(),
        lines_loaded: lines.value.into(),
        lines_loaded_ci95: Some(ci95(lines)),
        lost_share: level.lost_share.value.into(),
        lost_share_ci95: Some(ci95(&level.lost_share)),
        spatial_loss_bytes: lost.value.into(),
        spatial_loss_bytes_ci95: Some(ci95(lost)),
        ways: None,
    }
}

fn values(function: &FunctionLoss, of: impl Fn(&Costs) -> Estimate) -> Both<Number> {
    Both { inclusive: of(&function.inclusive).value.into(), own: of(&function.own).value.into() }
}

fn intervals(function: &FunctionLoss, of: impl Fn(&Costs) -> Estimate) -> Both<Interval> {
    Both { inclusive: ci95(&of(&function.inclusive)), own: ci95(&of(&function.own)) }
}
