//! The whole model over context ranks: three, four and eight of them, blocks of ranks that exchange heads,
//! slices, and everything else beside it. Pairs of two ranks are among all layouts that are proven.
use parallel::Layout;
use prove::cases::PANEL;
use prove::{OracleTraces, prove};
use tensor::Key;

const LAYOUTS: [&str; 8] = [
    "cp=3",
    "cp=8:contiguous",
    "cp=4:striped:ulysses/2",
    "tp=2,cp=4:ulysses",
    "cp=4,pp=2:seq1f1b",
    "cp=4:ulysses,recompute",
    "cp=2:gathered,dp=2:zero3",
    "tp=2,sp,cp=2,pp=2,dp=2:zero1",
];

/// Kills: positions that begin anew on each rank, documents that end with a rank's tokens, a loss or a norm
/// that counts every context rank, new tokens whose keys no rank keeps or two do, slices that see less than
/// one rank's.
#[test]
fn models_over_context_ranks_equal_the_oracle() {
    for layout in LAYOUTS {
        let layout: Layout = layout.parse().unwrap();
        // each model has windows, few KV heads, experts or learned positions
        for member in PANEL.iter().step_by(3) {
            let subject = member.subject(&layout).unwrap();
            let verdict = prove(&subject, &layout, &[Key(3)], &OracleTraces::default()).unwrap();
            assert!(verdict.equal, "{} under {layout}: {}", member.name, verdict.statement());
        }
    }
}
