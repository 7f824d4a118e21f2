"""Store the bands of one scene. In: its source files. Out: its record. Params: row, sensor, bands, cog."""

from cogmill.ingest import to_cog
from cogmill.log import start_log

if __name__ == "__main__":
    start_log(snakemake.log[0])
    to_cog(
        scene=snakemake.wildcards.scene,
        row=snakemake.params.row,
        sensor=snakemake.params.sensor,
        bands=snakemake.params.bands,
        cog=snakemake.params.cog,
        record=snakemake.output.record,
        max_attempts=snakemake.params.max_attempts,
        spool_mb=snakemake.params.spool_mb,
        watched=snakemake.params.watched,
        threads=snakemake.threads,
    )
