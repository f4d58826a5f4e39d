//! The grammar of layouts, made from a list of strategies: reads and prints layouts, and explains why a text
//! is not one.
use super::misfit::either;
use super::{AXES, Layout, MAX_RANKS, Unseen};
use crate::{Error, Result, bail};
use comm::Axis;
use layers::{Choice, NumberArgument, StrategyInfo};
use ops::TokenShards;
use std::iter::once;

/// The strategies that layouts can name.
#[derive(Clone, Copy)]
pub(super) struct Grammar<'a>(pub(super) &'a [&'static StrategyInfo]);

/// Strategies by their index in the list, each with its number; 0 if it has none.
type NamedStrategies = Vec<(usize, u32)>;

impl Grammar<'_> {
    /// Returns the axes that some strategy splits along, in the list's order.
    pub(super) fn axes(self) -> Vec<Axis> {
        let mut axes: Vec<Axis> = Vec::new();
        self.0.iter().filter_map(|about| about.axis).for_each(|axis| {
            if !axes.contains(&axis) {
                axes.push(axis);
            }
        });
        axes
    }
    /// Returns true if two strategies of the list are the same choice for the same axis.
    fn alike(self, i: usize, j: usize) -> bool {
        (self.0[i].choice, self.0[i].axis) == (self.0[j].choice, self.0[j].axis)
    }
    /// Returns true if a strategy applies when its axis is split and the layout names no other.
    fn is_default(self, i: usize) -> bool {
        self.0[i].choice.has_default() && !(0..i).any(|j| self.alike(i, j))
    }
    /// Returns the strategies of a layout, by their index in the list.
    pub(super) fn taken(self, layout: &Layout) -> Vec<usize> {
        let other = |i| (0..self.0.len()).any(|j| layout.names(j) && self.alike(i, j));
        let split = |i: usize| self.0[i].axis.is_some_and(|axis| layout.size(axis) > 1);
        let usual = |i| split(i) && self.is_default(i) && (self.0[i].choice == Choice::Layers || !other(i));
        (0..self.0.len()).filter(|&i| layout.names(i) || usual(i)).collect()
    }
    /// Reads a layout.
    pub(super) fn read(self, text: &str) -> Result<Layout> {
        if text.trim().is_empty() {
            let such = self.example();
            bail!("the layout is empty; write none, or ranks along axes, such as {such}");
        }
        let parts: Vec<_> = text.split(',').map(str::trim).collect();
        if parts.contains(&"none") {
            return match parts.iter().find(|part| **part != "none").or(parts.get(1)) {
                Some(with) => bail!("none stands alone: it cannot be combined with {with:?}"),
                None => Ok(Layout::UNSPLIT),
            };
        }
        let (mut sizes, mut named, mut order) = (Vec::new(), NamedStrategies::new(), None);
        for part in parts {
            let mut methods = part.split(':').map(str::trim).peekable();
            let head = methods.next().unwrap_or_default();
            let axis = match head.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
                Some(("order", axes)) => {
                    if order.replace(axes).is_some() || methods.peek().is_some() {
                        bail!("{part:?} is not a valid order, or is a second one; write order=tp.dp once");
                    }
                    continue;
                }
                Some((key, size)) => {
                    sizes.push(self.size(key, size)?);
                    sizes.last().map(|(axis, _)| *axis)
                }
                None => {
                    let word = self.word(head)?;
                    if self.0[word].axis.is_some() || methods.peek().is_none() {
                        named.push((word, 0));
                    }
                    self.0[word].axis
                }
            };
            for method in methods {
                named.push(self.method(axis, method)?);
            }
        }
        let layout = self.naming(sized(&sizes)?, named)?;
        order.map_or(Ok(layout), |order| ordered(layout, order))
    }
    /// Parses `axis=ranks`.
    fn size(self, key: &str, size: &str) -> Result<(Axis, usize)> {
        let axes = either(&self.axes(), "and");
        let Some(axis) = self.axes().into_iter().find(|axis| axis.name() == key) else {
            if let Some(about) = self.0.iter().find(|about| about.word == key && !about.is_plain()) {
                bail!("{key}={size}: {key} has no ranks of its own; write {}", about.written(2));
            }
            return Err(Error::new(match Axis::ALL.iter().find(|axis| axis.name() == key) {
                Some(&Axis::Edp) => {
                    format!("{key} is never written: it follows from the other axes; leave it out")
                }
                _ => format!("{key:?} is not an axis of a layout; the axes are {axes}{}", self.words("and")),
            }));
        };
        if size.is_empty() || !size.bytes().all(|byte| byte.is_ascii_digit()) {
            bail!("{axis} is {size:?}; it must be a whole number of ranks, 1 or more");
        }
        Ok((axis, size.parse().or_else(|_| many(format!("{axis}={size}")))?))
    }
    /// Parses a word that stands beside axes.
    fn word(self, word: &str) -> Result<usize> {
        match self.0.iter().position(|about| about.word == word && about.stands_alone()) {
            Some(i) => Ok(i),
            None => bail!(
                "{word:?} is not part of a layout; write axis=ranks, such as {}{}",
                self.example(),
                self.words("or")
            ),
        }
    }
    /// Parses a method after the ranks of an axis, or after the word of a choice without an axis: `zero1`,
    /// `ulysses/4`.
    fn method(self, axis: Option<Axis>, text: &str) -> Result<(usize, u32)> {
        let (word, number) =
            text.split_once('/').map_or((text, None), |(word, n)| (word.trim(), Some(n.trim())));
        let of = axis.map_or(Choice::RECOMPUTE, Axis::name);
        let is_method = |about: &StrategyInfo| about.choice != Choice::Layers && !about.is_plain();
        let Some(i) = self.0.iter().position(|about| about.word == word && is_method(about)) else {
            let own = self.0.iter().filter(|about| about.axis == axis && is_method(about));
            let own: Vec<_> = own.map(|about| about.word).collect();
            let has =
                if own.is_empty() { "it has none".into() } else { format!("write {}", either(&own, "or")) };
            bail!("{word:?} is not a method of {of}; {has}");
        };
        let about = self.0[i];
        if about.axis != axis {
            let whose = about.axis.map_or(Choice::RECOMPUTE, Axis::name);
            let written = about.written(2);
            bail!("{word} ({}) goes with {whose}, not with {of}: write {written}", about.name);
        }
        Ok((i, self.number(i, number)?))
    }
    fn number(self, i: usize, number: Option<&str>) -> Result<u32> {
        let StrategyInfo { word, takes, .. } = *self.0[i];
        let method = self.0[i].method();
        match (takes, number) {
            (NumberArgument::Nothing, Some(n)) => bail!("{word}/{n}: {word} takes no number; write {word}"),
            (NumberArgument::Required(what) | NumberArgument::Percent(what), None) => {
                bail!("{word} needs a number, its {what}; write {method}")
            }
            (_, None) => Ok(0),
            (
                NumberArgument::Optional(what)
                | NumberArgument::Required(what)
                | NumberArgument::Percent(what),
                Some(n),
            ) => {
                let digits = n.bytes().all(|byte| byte.is_ascii_digit());
                let (fits, possible, such) = match takes {
                    NumberArgument::Percent(_) => (0..=99, "0 to 99", method),
                    _ => (1..=u32::MAX, "1 or more", format!("{word}/2")),
                };
                n.parse().ok().filter(|number| digits && fits.contains(number)).ok_or_else(|| {
                    let why = format!("{what} must be a whole number, {possible}, such as {such}");
                    Error::new(format!("{word}/{n}: {why}"))
                })
            }
        }
    }
    /// Returns the layout of these ranks that names these strategies.
    fn naming(self, mut layout: Layout, named: NamedStrategies) -> Result<Layout> {
        for (n, &(i, number)) in named.iter().enumerate() {
            let StrategyInfo { name, word, axis, choice, .. } = *self.0[i];
            let mut before = named[..n].iter().map(|(j, _)| *j);
            match before.rfind(|&j| j == i || choice != Choice::Layers && self.alike(i, j)) {
                Some(j) if j == i => bail!("{word} is written twice; write it once"),
                Some(j) => {
                    bail!("{} and {word} exclude each other; write one of them", self.0[j].word);
                }
                None => {}
            }
            if let Some(axis) = axis.filter(|axis| layout.size(*axis) == 1 && choice != Choice::Offload) {
                let written = self.0[i].written(2);
                bail!("{word} ({name}) needs {axis} ranks, 2 or more: write {written}");
            }
            if let Some(needs) = self.needs(i).filter(|&j| named.iter().all(|(named, _)| *named != j)) {
                let written = self.0[i].written(2);
                bail!("{word} ({name}) needs {}: write {written}", self.0[needs].word);
            }
            if number > 0 || !self.is_default(i) {
                layout.named |= 1 << i;
                layout.numbers[choice as usize] = number;
            } else if choice == Choice::Schedule {
                layout.says_schedule = Unseen(true);
            }
        }
        self.apart(&layout).map_or(Ok(layout), |why| Err(Error::new(why)))
    }
    /// Returns the reason why a strategy that stands alone cannot be in a layout, if there is one.
    fn apart(self, layout: &Layout) -> Option<String> {
        let (alone, word) = self.named(layout).into_iter().find(|(about, _)| about.alone)?;
        let mut axes = self.axes().into_iter().filter(|axis| layout.size(*axis) > 1);
        let axis =
            axes.find(|axis| Some(*axis) != alone.axis).map(|axis| format!("{axis}={}", layout.size(axis)));
        let other = |about: &StrategyInfo| about.choice != Choice::Recompute && about.word != alone.word;
        let method = || Some(self.named(layout).into_iter().find(|(about, _)| other(about))?.1);
        let with = axis.or_else(method)?;
        let written = alone.written(layout.size(alone.axis?));
        Some(format!(
            "{word} stands alone: it is combined with {with}; write {written}, with {} at most",
            Choice::RECOMPUTE
        ))
    }
    /// Returns the strategy that another cannot be without, if there is one.
    fn needs(self, i: usize) -> Option<usize> {
        let StrategyInfo { axis, needs, .. } = *self.0[i];
        self.0.iter().position(|about| about.axis == axis && Some(about.word) == needs)
    }
    /// Returns the layout with one more strategy, `sp` or `ulysses/4`, and the one that it needs.
    pub(super) fn with(self, layout: Layout, written: &str) -> Result<Layout> {
        let word = written.split('/').next().unwrap_or(written);
        let one = match self.0.iter().find(|about| about.word == word).copied() {
            Some(about) if about.choice != Choice::Layers && !about.is_plain() => {
                self.method(about.axis, written)?
            }
            _ => (self.word(written)?, 0),
        };
        let before = (0..self.0.len()).filter(|&i| layout.names(i));
        let before = before.map(|i| (i, layout.numbers[self.0[i].choice as usize]));
        let needed = self.needs(one.0).filter(|&i| !layout.names(i)).map(|i| (i, 0));
        self.naming(Layout { named: 0, ..layout }, before.chain(needed).chain(once(one)).collect())
    }
    /// Returns the strategies that a layout names and its axes do not imply, each as it is written: `sp`,
    /// `ulysses/4`.
    pub(super) fn named(self, layout: &Layout) -> Vec<(&'static StrategyInfo, String)> {
        let of = |i: usize| {
            let number = layout.number(self.0[i]).map_or(String::new(), |number| format!("/{number}"));
            (self.0[i], format!("{}{number}", self.0[i].word))
        };
        (0..self.0.len()).filter(|&i| layout.names(i)).map(of).collect()
    }
    /// Returns the layout as it is written.
    pub(super) fn print(self, layout: &Layout) -> String {
        let named = self.named(layout);
        let mut parts = Vec::new();
        for axis in self.axes().into_iter().filter(|&axis| layout.size(axis) > 1) {
            let along = named.iter().filter(|(about, _)| about.axis == Some(axis));
            let (beside, methods): (Vec<_>, Vec<_>) =
                along.partition(|(about, _)| about.choice == Choice::Layers);
            let methods = methods.iter().map(|(_, written)| written.clone());
            parts.push(
                once(format!("{axis}={}", layout.size(axis))).chain(methods).collect::<Vec<_>>().join(":"),
            );
            parts.extend(beside.into_iter().map(|(_, word)| word.clone()));
        }
        let alone = |about: &StrategyInfo| about.axis.is_none_or(|axis| layout.size(axis) == 1);
        parts.extend(named.iter().filter(|(about, _)| alone(about)).map(|(about, written)| {
            let alone = about.is_plain() || about.axis.is_some();
            if alone { written.clone() } else { format!("{}:{written}", Choice::RECOMPUTE) }
        }));
        let order: Vec<_> = layout.order.iter().flatten().map(|axis| axis.name()).collect();
        if !order.is_empty() {
            parts.push(format!("order={}", order.join(".")));
        }
        if parts.is_empty() { "none".into() } else { parts.join(",") }
    }
    /// Returns the syntax of layouts, for `--help`: axes, and the first word or method of each.
    pub(super) fn help(self) -> String {
        let mut said: Vec<_> = self.axes().iter().map(|axis| format!("{axis}=2")).collect();
        said.push(self.example());
        let first = |axis: &Axis| self.0.iter().find(|about| about.axis == Some(*axis) && !about.is_plain());
        let methods: Vec<_> = Axis::DENSE.iter().filter_map(first).map(|about| about.written(2)).collect();
        format!(
            "Ranks along each axis: none, {}, ...; with words and methods, such as {}; `equipart strategies` \
             lists all",
            said.join(", "),
            either(&methods, "or")
        )
    }
    /// Returns the first two axes that split any model.
    fn example(self) -> String {
        self.axes()
            .iter()
            // a picture is one token
            .filter(|axis| Axis::DENSE.contains(axis) && **axis != TokenShards::CONTEXT)
            .take(2)
            .map(|axis| format!("{axis}=2"))
            .collect::<Vec<_>>()
            .join(",")
    }
    /// Returns the words that may stand beside axes.
    fn words(self, last: &str) -> String {
        let words: Vec<_> =
            self.0.iter().filter(|about| about.stands_alone()).map(|about| about.word).collect();
        if words.is_empty() { String::new() } else { format!(", and beside them {}", either(&words, last)) }
    }
}

impl Layout {
    /// Returns this layout with one more strategy, in place of another of its choice.
    ///
    /// # Errors
    /// If its axis has only one rank, or its number does not fit.
    pub fn with_instead(self, about: &StrategyInfo) -> Result<Self> {
        let all = super::grammar_of_all();
        let is_other = |of: &StrategyInfo| (of.choice, of.axis) == (about.choice, about.axis);
        let others = (0..all.0.len()).filter(|&i| is_other(all.0[i])).fold(0, |bits, i| bits | 1 << i);
        all.with(Layout { named: self.named & !others, ..self }, &about.method())
    }
}

impl Layout {
    /// Returns this layout with the default schedule.
    #[must_use]
    pub fn unscheduled(self) -> Self {
        let grammar = super::grammar_of_all();
        let schedules = (0..grammar.0.len()).filter(|&i| grammar.0[i].choice == Choice::Schedule);
        let mut numbers = self.numbers;
        numbers[Choice::Schedule as usize] = 0;
        let named = schedules.fold(self.named, |bits, i| bits & !(1 << i));
        Self { named, says_schedule: Unseen(false), numbers, table: None, ..self }
    }
}

/// Returns the layout of these ranks along axes, in any order.
pub(super) fn sized(sizes: &[(Axis, usize)]) -> Result<Layout> {
    let mut given = [None; AXES];
    for &(axis, size) in sizes {
        if size == 0 {
            bail!("{axis} is \"0\"; it must be a whole number of ranks, 1 or more");
        }
        if given[axis as usize].replace(size).is_some() {
            bail!("the {axis} axis is given twice; give each axis once");
        }
    }
    let written = || sizes.iter().map(|(axis, size)| format!("{axis}={size}")).collect::<Vec<_>>().join(",");
    let product = |axes: &[Axis], given: &[Option<usize>]| {
        let mut inside = axes.iter().filter(|axis| **axis != Axis::Pp);
        inside.try_fold(1usize, |ranks, axis| ranks.checked_mul(given[*axis as usize].unwrap_or(1)))
    };
    let Some(experts) = product(&Axis::EXPERT, &given) else { return many(written()) };
    if Axis::DENSE.iter().all(|axis| *axis == Axis::Pp || given[*axis as usize].is_none()) {
        // only experts are split: each rank has its own sequences
        given[TokenShards::SEQUENCES as usize] = Some(experts);
    }
    let stage = product(&Axis::DENSE, &given);
    let ranks = stage.and_then(|stage| stage.checked_mul(given[Axis::Pp as usize].unwrap_or(1)));
    let (Some(stage), true) = (stage, ranks.is_some_and(|ranks| ranks <= MAX_RANKS)) else {
        return many(written());
    };
    if !stage.is_multiple_of(experts) {
        let data = given[TokenShards::SEQUENCES as usize];
        let more = experts / common(experts, stage);
        let possible =
            ranks.and_then(|ranks| ranks.checked_mul(more)).is_some_and(|ranks| ranks <= MAX_RANKS);
        let verb = if data.is_some() { "write" } else { "add" };
        let help = || format!("; {verb} {}={}", TokenShards::SEQUENCES, more * data.unwrap_or(1));
        bail!(
            "{}: {experts} ranks of experts do not divide the {stage} ranks of a stage{}",
            written(),
            if possible { help() } else { String::new() }
        );
    }
    Ok(Layout { sizes: given.map(|size| size.unwrap_or(1)), ..Layout::UNSPLIT })
}

/// Returns the greatest common divisor.
fn common(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common(b, a % b) }
}

fn many<T>(seen: String) -> Result<T> {
    bail!("{seen} makes more than {MAX_RANKS} ranks; the product of all axes must be at most {MAX_RANKS}")
}

/// Returns the layout with its axes nested in this order, innermost first.
fn ordered(layout: Layout, text: &str) -> Result<Layout> {
    let usual: Vec<_> = Axis::NESTED.into_iter().filter(|axis| layout.size(*axis) > 1).collect();
    let names = usual.iter().map(|axis| axis.name()).collect::<Vec<_>>().join(".");
    let wrong = |why: String| {
        bail!("order={text} {why}; each split axis is named once, innermost first: order={names}")
    };
    if usual.is_empty() {
        bail!("order={text} orders nothing, as no axis is split; leave it out");
    }
    let mut given = Vec::new();
    for name in text.split('.').map(str::trim) {
        match usual.iter().find(|axis| axis.name() == name) {
            None => return wrong(format!("names {name:?}, which is not a split axis")),
            Some(axis) if given.contains(axis) => return wrong(format!("names {axis} twice")),
            Some(axis) => given.push(*axis),
        }
    }
    if let Some(axis) = usual.iter().find(|axis| !given.contains(axis)) {
        return wrong(format!("lacks {axis}"));
    }
    let mut order = [None; Axis::NESTED.len()];
    if given != usual {
        order.iter_mut().zip(given).for_each(|(place, axis)| *place = Some(axis));
    }
    Ok(Layout { order, ..layout })
}
