"""What a run or an evaluation came to, as one HTML file that opens anywhere."""

from meshcap.report.curves import Curve, curves_of
from meshcap.report.page import ReportContent, SampleCard, picks, write_report

__all__ = ["Curve", "ReportContent", "SampleCard", "curves_of", "picks", "write_report"]
