//! `prove --cases`: draws models × layouts × batches. Each case equals the oracle, or is shrunk to the
//! smallest that does not.
//!
//! A case is the whole input of a proof. It is drawn from one number ([`draw`]), is stored as one line of
//! JSON, and is proven under one key of the field. [`HABITS`] lists the properties that drawn cases must
//! cover, because bugs hide in what cases do not cover.
//!
//! Source: Claessen, Hughes, "`QuickCheck`", ICFP 2000 (properties of drawn values); `MacIver`, Donaldson,
//! "Test-case reduction via test-case generation", ECOOP 2020 (reasons to shrink the draws rather than the
//! case made of them).
mod campaign;
mod case;
mod certificate;
mod document;
mod drawn;
mod failure;
mod fitted;
mod habits;
mod image;
mod panel;
mod report;
mod shrunk;
mod small;
mod words;

pub use campaign::{Campaign, ended_well, judge};
pub use case::{CaseStep, ProofCase};
pub use certificate::{Certificate, Proven, certify_panel};
pub use document::Document;
pub use drawn::draw;
pub use failure::Failure;
pub use fitted::fitted;
pub use habits::{HABITS, Habit};
pub use image::image;
pub use panel::{Member, PANEL, never_ran};
pub use report::CampaignReport;

#[cfg(test)]
mod tests;
