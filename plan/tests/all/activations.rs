//! Bytes that a block saves for its backward, beside the formulas of Korthikanti et al., arXiv:2205.05198,
//! table 2, with `s` tokens, `h` features and `t` tensor ranks in 16 bits.
use kernels::Heads;
use layers::{Design, Rates, Shape};
use ops::ADAMW;
use parallel::Layout;
use plan::Machine;
use plan::block::{BlockCost, staged};
use plan::step::TrainingJob;
use std::sync::Arc;
use tensor::{Bf16, Cpu};

/// Formulas over `s·h`, without attention's scores, which no kernel here keeps: 10 + 24/t with tensor
/// parallelism, 34/t with sequence parallelism. Kept here beside them: in f32, the mean and the deviation of
/// each token for both norms, and the log-sum-exp of each head; and lists of a few bytes. Not kept: the masks
/// of dropout, 2 of the 34, which are drawn again; and, with selective recomputation, queries, keys, values
/// and the core's output, 8/t, of which the paper recomputes only scores. Kills: a tensor that is saved
/// twice, or on too many ranks.
#[test]
fn blocks_save_what_the_formulas_say() {
    let (s, h, heads) = (1024, 1536, 16);
    let dropout = Rates { embedding: 0.1, attention: 0.0, residual: 0.1 };
    let shape = Shape {
        width: h,
        blocks: 4,
        heads: Heads::new(heads, heads, h / heads),
        hidden: 4 * h,
        vocabulary: 512,
        dropout,
        ..Shape::GPT2
    };
    let optimizer = (ADAMW, Some(1.0).into());
    let design = Design::Transformer(shape);
    let job = TrainingJob { design, optimizer, seq: s, batch_size: 4, dtype: "bf16" };
    let machine = Arc::new(Machine::named("a100").unwrap());
    // eighths of s·h by the formula, and not kept; numbers of each token in f32
    for (layout, formula, less, kept) in [
        ("none", 34 * 8, 2 * 8, 4 + heads),
        ("tp=8", (10 + 3) * 8, 2 * 8, 4 + heads / 8),
        ("tp=8,sp", 34, 2, 0),
        ("recompute:selective", 34 * 8, 10 * 8, 4),
        ("tp=8,sp,recompute:selective", 34, 10, 0),
        ("recompute", 2 * 8, 0, 0),
        ("tp=8,sp,recompute", 2, 0, 0),
    ] {
        let (layout, unlike) = staged(&layout.parse::<Layout>().unwrap()).unwrap();
        let saved = BlockCost::new::<Cpu<Bf16>>((&layout, unlike), &job, (1, false), &machine).unwrap();
        // with sequence parallelism a rank has an eighth of the norms' tokens
        let eighths = match layout.to_string() {
            of if of.contains("sp") && !of.contains("recompute") => 4 + heads,
            of if of.contains("sp") && of.contains("selective") => 4,
            _ => 8 * kept,
        };
        let wanted = (formula - less) * s * h / 8 + 4 * eighths * s / 8;
        let lists = saved.kinds[0][0].saved - wanted;
        assert!(lists <= 64, "{layout}: {} bytes instead of {wanted}", saved.kinds[0][0].saved);
    }
}
