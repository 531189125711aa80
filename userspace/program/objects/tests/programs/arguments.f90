! Arrays that are dummy arguments of the hot subroutine. Truths as in kinds.c.
subroutine tell(where, text)
  integer(8) :: where
  character(*) :: text
  print '(a,z0,a,a)', 'heap 0x', where, ' ', text
end subroutine

subroutine sweep(nx, ny, flux, src, weight)
  implicit none
  integer :: nx, ny, i, j
  double precision :: flux(nx, ny), src(nx, ny), weight(:)
  call tell(loc(flux(2, 3)), 'flux|[][]|real(kind=8) (:,:)')
  call tell(loc(src(4, 5)), 'src|[][]|real(kind=8) (:,:)')
  call tell(loc(weight(6)), 'weight|[]|real(kind=8) (:)')
  print '(a)', 'ready'
  flush(6)
  do
    do i = 1, nx
      do j = 1, ny
        flux(i, j) = flux(i, j) * 0.99d0 + src(i, j) * weight(j)
      end do
    end do
  end do
end subroutine

subroutine entry_point(n, pool, more)
  implicit none
  interface
    subroutine sweep(nx, ny, flux, src, weight)
      integer :: nx, ny
      double precision :: flux(nx, ny), src(nx, ny), weight(:)
    end subroutine
  end interface
  integer :: n
  double precision :: pool(n, n), more(n, n, 2)
  call sweep(n, n, pool, more(:, :, 2), more(:, 1, 1))
end subroutine
