"""Judge the campaign; exit code 1 fails it. In: ledgers. Out: the verdict. Params: scenes, max_failed_fraction."""

from cogmill.log import start_log
from cogmill.verdict import judge

if __name__ == "__main__":
    start_log(snakemake.log[0])
    judge(
        ledgers=snakemake.input.ledgers,
        scenes=snakemake.params.scenes,
        max_failed_fraction=snakemake.params.max_failed_fraction,
        out=snakemake.output.verdict,
    )
