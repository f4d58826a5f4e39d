//! `prove --cases`: models × layouts × batches, drawn; each equal to the oracle, or shrunk to the smallest that is not.
//!
//! A case is all that a proof is about: it is drawn from a number and nothing else ([`draw`]), is kept as one line of
//! JSON, and is proven under one key of the field. What cases must be like, because bugs hide where they are not, is a
//! list too: [`HABITS`].
//!
//! Source: Claessen, Hughes, "`QuickCheck`", ICFP 2000 (properties of drawn values); `MacIver`, Donaldson, "Test-case
//! reduction via test-case generation", ECOOP 2020 (why what was drawn is shrunk, and not what became of it).
mod campaign;
mod case;
mod document;
mod drawn;
mod fitted;
mod habits;
mod image;
mod panel;
mod report;
mod shrunk;
mod words;

pub use campaign::{Campaign, Failure, judge};
pub use case::{Case, CaseStep};
pub use document::Document;
pub use drawn::draw;
pub use fitted::fitted;
pub use habits::{HABITS, Habit};
pub use image::image;
pub use panel::{Certificate, Member, PANEL, Proven, certify_panel, never_ran};
pub use report::CampaignReport;

#[cfg(test)]
mod tests;
