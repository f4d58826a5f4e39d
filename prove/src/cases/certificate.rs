//! Proof of the panel, and its certificate.
use super::panel::{Member, PANEL};
use crate::proof::bounded;
use crate::verdict::{LIMITS, WHAT, headline, sure};
use crate::{Keys, Verdict, check};
use parallel::{Network, Result, Scheme, budget};
use serde::Serialize;
use tensor::{Cpu, F61};

/// Outcome of the proof of a panel.
#[derive(Clone, Debug, Serialize)]
pub struct Certificate {
    /// Verdict on all of its models; the bound is the largest.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Texts and steps of each model, in words.
    pub work: String,
    /// Models that were proven, up to the first that is not equal.
    pub models: Vec<Proven>,
}

/// One model of a panel.
#[derive(Clone, Debug, Serialize)]
pub struct Proven {
    /// Name of the model.
    pub name: &'static str,
    /// Sizes, features and optimizer, in words.
    pub model: String,
    /// log₂ of the probability that a program passes that is wrong on this model.
    pub bound_log2: Option<f64>,
}

/// Proves a layout on every model of the panel, over this network, until one is not equal. Calls `reported`
/// with each activity.
///
/// # Errors
/// If no small model fits the layout, or a rank fails.
pub fn certify_panel<'a>(
    scheme: impl Into<Scheme<'a, Cpu<F61>>>,
    keys: impl Into<Keys<'a>>,
    (network, reported): (&Network, &dyn Fn(&str)),
) -> Result<Certificate> {
    let scheme = scheme.into();
    let fits = |member: &Member| {
        let subject = member.subject(scheme)?;
        check(&subject, scheme, network).map(|()| subject)
    };
    let subjects = budget::all(PANEL.iter().map(fits))?; // before the first proof
    reported("bounding the probability of an error");
    let bounds: Vec<_> = subjects.iter().map(|subject| subject.bound_log2(1)).collect();
    let keys = &*keys.into().all(|| bounds.clone());
    let verdict = Verdict::of((&scheme, &"small models"), keys);
    let verdict = Verdict { bound_log2: Some(f64::NEG_INFINITY), ..verdict };
    let mut certificate = Certificate { verdict, work: String::new(), models: Vec::new() };
    for ((member, subject), bound) in PANEL.iter().zip(subjects).zip(bounds) {
        reported(member.name);
        let one = bounded(&subject, scheme, (keys, &|| bound), (network, &|_| ()))?;
        let model = format!("{}; {}", subject.model, subject.learner());
        certificate.models.push(Proven { name: member.name, model, bound_log2: one.bound_log2 });
        certificate.work = subject.work();
        let sum = &mut certificate.verdict;
        sum.bound_log2 = sum.bound_log2.zip(one.bound_log2).map(|(a, b)| a.max(b));
        (sum.tensors, sum.elements) = (sum.tensors + one.tensors, sum.elements + one.elements);
        (sum.equal, sum.first_difference) = (one.equal, one.first_difference);
        if !sum.equal {
            break;
        }
    }
    Ok(certificate)
}

impl Certificate {
    /// Returns the statement, in words: what was shown, how surely, and what it does not cover.
    pub fn statement(&self) -> String {
        let Self { verdict: Verdict { layout, tensors, elements, .. }, work, models } = self;
        let (keys, n) = (self.verdict.keys.join(" and "), models.len());
        let first = self.verdict.first_difference.as_ref();
        if let Some((difference, Proven { name, model, .. })) = first.zip(models.last()) {
            return format!(
                "Not equal: under {layout} and the keys {keys}, of {name} ({model}) {difference}"
            );
        }
        let line = |Proven { name, model, bound_log2 }: &Proven| {
            let bound = bound_log2.map_or_else(|| "no bound".into(), |log2| format!("2^{log2:.1}"));
            format!("  {name} ({bound}): {model}\n")
        };
        let ran: String = models.iter().map(line).collect();
        format!(
            "{}: under {layout}, generation and training of {n} small models equal the unsplit oracle in \
             the field of 2^61 - 1.\n\
             What ran, with sizes that fit the layout:\n{ran}\
             Each model: {work}.\n\
             Equal bit for bit: {tensors} tensors, {elements} elements ({WHAT}), on every rank, under the keys {keys}.\n\
             For the shapes that ran, {} (opaque functions taken as random).\n{LIMITS}",
            headline(self.verdict.bound_log2),
            sure("a program that is wrong on one of them", self.verdict.bound_log2, self.verdict.keys.len())
        )
    }
}
