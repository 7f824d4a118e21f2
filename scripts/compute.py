"""Make the products of a batch, or of one scene. In: records. Out: ledger, if any. Params: scenes, spec, home, run."""

from cogmill.log import start_log
from cogmill.supervisor import compute_batch

if __name__ == "__main__":
    start_log(snakemake.log[0])
    compute_batch(
        scenes=snakemake.params.scenes,
        cogs=snakemake.input.cogs,
        grids=snakemake.input.grids,
        home=snakemake.params.home,
        params=snakemake.params.spec,
        run=snakemake.params.run,
        ledger=snakemake.output.get("ledger"),
        strict=snakemake.params.strict,
        threads=snakemake.threads,
    )
