"""The plots of the documentation: what is measured, how it is drawn, and where it stands."""
